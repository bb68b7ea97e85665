"""Plays whole episodes: for evaluations, and to check an environment."""
