"""Clients of the services, and the bytes that they send."""
