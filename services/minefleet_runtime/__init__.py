"""Shared code of the services: serving and draining, health, metrics, logging, and the start of a role."""
