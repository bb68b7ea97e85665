"""Environments that step in batches."""
