"""Replay as a process that tests hurt."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.minefleet_replay.conftest import Server
from tests.role_process import TIMEOUT_S, RoleProcess, free_address

from minefleet.config import EndpointConfig, ServicesConfig
from minefleet.config.security import SecurityConfig
from minefleet.rpc.replay_client import ReplayClient

OPEN = SecurityConfig()
PAYLOAD = b"payload" * 1000


class ReplayProcess(RoleProcess):
    """The replay of one run, on ports of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        drain_s: float = 5.0,
        address: str = "",
        security: SecurityConfig = OPEN,
        **replay: Any,
    ) -> None:
        super().__init__("minefleet_replay", directory, free_address())
        self.server = Server(directory, **replay)
        self.server.address = address or free_address()
        endpoint = EndpointConfig(address=self.server.address, metrics_address=self.metrics_address)
        services = ServicesConfig(replay=[endpoint], drain_s=drain_s, security=security)
        self.server.run = replace(self.server.run, config=replace(self.server.run.config, services=services))
        self.server.run.write()

    @property
    def store(self) -> Path:
        return self.server.run.shards[0].store

    def client(self, **arguments: Any) -> ReplayClient:
        return self.server.client(**({"patience_s": TIMEOUT_S} | arguments))


def append(replay: ReplayProcess, client: ReplayClient, stream: str, sequence: int, payload: bytes = PAYLOAD) -> str:
    """Appends one fragment. Returns what became of it."""
    (outcome,) = client.append([(replay.server.header(stream, sequence, payload), payload)]).outcomes
    return str(outcome)
