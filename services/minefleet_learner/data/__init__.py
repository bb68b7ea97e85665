"""Leases fragments and makes batches of them."""
