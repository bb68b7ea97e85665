"""Replay: stores fragments durably and leases them under limits on reuse and staleness."""
