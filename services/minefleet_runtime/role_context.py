"""The place of a role in its run: its name, its addresses, its stop signal, and its file below the run directory."""

import argparse
import json
import os
import threading
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from minefleet.core.atomic_files import write_whole
from minefleet.rpc.credentials import NOTHING, Credentials
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2
from minefleet_runtime.role_status import StatusTracker

ROLES_DIRECTORY = "roles"
"""Below the run directory: one file per live role, with its addresses."""


def section_of(name: str) -> str:
    """The section of the configuration with the addresses of the role called `name`."""
    role, dash, index = name.partition("-")
    return f"services.{role}[{index}]" if dash and role == "replay" else f"services.{role}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleContext:
    """A role's place in its run."""

    run: Run
    role: status_service_pb2.Role.ValueType
    name: str
    """Unique in the run: "replay", "replay-0", "parameters", "learner", "actor-0", "evaluator"."""
    index: int = 0
    """Number of the actor, or of the shard of replay: 0, 1, ..."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set by SIGTERM and SIGINT."""
    status: StatusTracker = field(default_factory=StatusTracker)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    arguments: argparse.Namespace = field(default_factory=argparse.Namespace)
    """Command-line arguments that the role added itself."""
    listen: str = ""
    """`host:port` to listen on; empty where it is the address at which callers find the role."""
    metrics_address: str = ""
    """Address of /metrics; empty where it is not served."""
    credentials: Credentials = NOTHING
    """Credentials of this process."""

    @property
    def section(self) -> str:
        """The section of the configuration with the role's addresses."""
        return section_of(self.name)

    def announce(self, address: str) -> None:
        """Writes the role's file below the run directory, whole, so that tools find the role."""
        card = {
            "name": self.name,
            "role": status_service_pb2.Role.Name(self.role),
            "pid": os.getpid(),
            "address": address,
            "metrics_address": self.metrics_address,
        }
        directory = self.run.directory / ROLES_DIRECTORY
        directory.mkdir(exist_ok=True)
        write_whole(directory / f"{self.name}.json", json.dumps(card) + "\n")

    def withdraw(self) -> None:
        """Removes the role's file."""
        (self.run.directory / ROLES_DIRECTORY / f"{self.name}.json").unlink(missing_ok=True)
