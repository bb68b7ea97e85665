"""A pool whose environments a host plays: a real port, and a real host process or a test's own words."""

import json
import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from tests.role_process import TIMEOUT_S, wait_for

from minefleet.config import EnvConfig, FleetConfig, RolloutConfig, WorkerConfig
from minefleet.core.schema import Schema
from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.rpc.credentials import NOTHING
from minefleet.rpc.handshake import WIRE_VERSION
from minefleet.runs.run_yaml import to_dict
from minefleet.v1 import worlds_service_pb2, worlds_service_pb2_grpc
from minefleet_actor.env_hosts.env_host_dial_in import WorldsServicer
from minefleet_actor.pool import HostedPool
from minefleet_runtime.grpc_server.access import Access
from minefleet_runtime.grpc_server.interceptors import RpcInterceptor
from minefleet_runtime.grpc_server.serve import SERVER_OPTIONS
from minefleet_runtime.metrics import RpcMetrics


class ServedPool(HostedPool):
    """A pool with a port of its own, as an actor has it."""

    listen = "127.0.0.1:0"

    def start(self) -> None:
        super().start()
        servicer = WorldsServicer()
        servicer.pool = self
        self._registry = CollectorRegistry()
        interceptor = RpcInterceptor(RpcMetrics(self._registry), Access(NOTHING))
        self._server = grpc.server(ThreadPoolExecutor(8), interceptors=[interceptor], options=SERVER_OPTIONS)
        worlds_service_pb2_grpc.add_WorldsServiceServicer_to_server(servicer, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self.listen)}"
        self._server.start()

    def close(self) -> None:
        super().close()
        self._server.stop(None).wait()

    @property
    def ended(self) -> int:
        """Number of streams that the server has ended."""
        samples = [sample for family in self._registry.collect() for sample in family.samples]
        return sum(int(sample.value) for sample in samples if sample.name == "grpc_server_handled_total")

    @property
    def is_full(self) -> bool:
        return not self._free


class PlayedElsewhere(ServedPool):
    """A pool whose only host is a process of this machine."""

    def __init__(self, env_config: EnvConfig, schema: Schema, worker_config: WorkerConfig, **options: Any) -> None:
        super().__init__(env_config, schema, worker_config, **options)
        self.config = FleetConfig(env=env_config, rollout_config=RolloutConfig(worker_config=worker_config))

    def start(self) -> None:
        super().start()
        self.host = start_host(self.config, self.address)
        wait_for(lambda: self.is_full or self.host.poll() is not None)
        assert self.host.poll() is None

    def close(self) -> None:
        super().close()
        self.host.terminate()
        self.host.wait(TIMEOUT_S)


def start_host(config: FleetConfig, actor: str, *arguments: str, **worker: Any) -> "subprocess.Popen[bytes]":
    """A host of this configuration."""
    rollout = config.rollout_config
    rollout = replace(rollout, worker_config=replace(rollout.worker_config, **worker))
    text = json.dumps(to_dict(replace(config, rollout_config=rollout)))
    return subprocess.Popen(
        [sys.executable, "-m", "minefleet_actor.env_hosts.remote_env_host", text, "--actor", actor, *arguments]
    )


class Words:
    """A host that says what a test wants it to."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        self._said = queue.SimpleQueue[worlds_service_pb2.PlayRequest | None]()
        self.answers: Iterator[worlds_service_pb2.PlayResponse] = worlds_service_pb2_grpc.WorldsServiceStub(
            self._channel
        ).Play(iter(self._said.get, None))

    def hello(self, worlds: int = 1, *, wire_version: int = WIRE_VERSION, keeps_time: bool = True) -> None:
        hello = worlds_service_pb2.Hello(name="words", worlds=worlds, wire_version=wire_version, keeps_time=keeps_time)
        self._said.put(worlds_service_pb2.PlayRequest(hello=hello))

    def say(self, *results: worlds_service_pb2.Result) -> None:
        self._said.put(worlds_service_pb2.PlayRequest(results=worlds_service_pb2.Results(results=results)))

    def commands(self) -> list[worlds_service_pb2.Command]:
        return list(next(self.answers).commands.commands)

    def end(self) -> None:
        self._said.put(None)
        self._channel.close()


@contextmanager
def words(address: str) -> Iterator[Words]:
    host = Words(address)
    try:
        yield host
    finally:
        host.end()
