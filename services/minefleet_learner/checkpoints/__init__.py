"""Writes and restores checkpoints."""
