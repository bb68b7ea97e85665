"""Locates the stores of a run and the addresses of their services, for tools that read them from outside."""

import json
from dataclasses import dataclass
from pathlib import Path

from minefleet.monitoring.status import ROLES_DIRECTORY
from minefleet.runs.run_yaml import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLocation:
    """One process that keeps a store."""

    shard: int
    """Of replay; parameters has one."""
    name: str
    """Its role's name in the run."""
    store: Path
    """Directory of its store."""
    address: str
    """The address that the service has, or would have."""


def places(run: Run) -> list[StoreLocation]:
    """All processes of replay in a run, whether they are up or not."""
    return [
        StoreLocation(
            shard=shard.index,
            name=shard.name,
            store=shard.store,
            address=_announced(run, shard.name) or shard.endpoint.address,
        )
        for shard in run.shards
    ]


def parameters_place(run: Run) -> StoreLocation:
    """The parameters of a run, whether it is up or not."""
    address = _announced(run, "parameters") or run.config.services.parameters.address
    return StoreLocation(shard=0, name="parameters", store=run.parameters, address=address)


def _announced(run: Run, name: str) -> str:
    """The address that a role says it serves on; empty when it does not."""
    try:
        return str(json.loads((run.directory / ROLES_DIRECTORY / f"{name}.json").read_text())["address"])
    except FileNotFoundError:
        return ""
