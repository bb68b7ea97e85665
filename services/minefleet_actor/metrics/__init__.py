"""Prometheus metrics, rates, and where the time of slots goes."""
