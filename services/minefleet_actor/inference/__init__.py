"""Batches observations and runs the policy."""
