"""Metrics of an iteration, and where they go."""
