"""Finds the address of a service for tools that look at a run from outside."""

import json

from minefleet.config import EndpointConfig
from minefleet.monitoring.status import ROLES_DIRECTORY
from minefleet.runs.run_yaml import Run


def address_of(run: Run, name: str, endpoint: EndpointConfig) -> str:
    """The address that a role says it serves on; that of its endpoint while it does not."""
    try:
        return str(json.loads((run.directory / ROLES_DIRECTORY / f"{name}.json").read_text())["address"])
    except FileNotFoundError:
        return endpoint.address
