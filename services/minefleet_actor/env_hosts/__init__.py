"""Environments on other hosts: the side of the host, which dials in, and that of the actor."""
