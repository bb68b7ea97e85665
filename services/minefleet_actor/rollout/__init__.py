"""Turns steps into fragments and episodes."""
