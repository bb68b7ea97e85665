"""Parity with the actors, and dumps of bad steps."""
