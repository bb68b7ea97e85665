"""Appends, leases and drops chunks, in transactions over state and storage."""
