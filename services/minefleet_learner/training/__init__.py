"""Optimizer steps and what they minimise."""
