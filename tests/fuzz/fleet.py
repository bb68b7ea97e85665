"""The four roles as processes, each with something in it, and the calls that fuzzing makes to them."""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.fuzz.contracts import HEALTH, PARAMETERS, REPLAY, SLOTS, STATUS, WORLDS, Method
from tests.parameters_process import RUN, ParametersProcess, pieces_of, weights_of
from tests.replay_process import ReplayProcess, append
from tests.role_process import TIMEOUT_S, RoleProcess, free_address, wait_for

from minefleet.config import EndpointConfig, EnvConfig, FleetConfig, ServicesConfig
from minefleet.launch.env_policy_check import EnvPolicyCheck, check_env_and_policy
from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Run

LEASE_S = 0.05
"""Longest wait for a Lease that must wait."""
GROWTH_BYTES = 100 * 2**20
"""Growth that a process may have, whatever it is sent: its pools of threads and memory fill once."""
BUCKETS = ("live", "leased", "trained", "expired", "evicted", "corrupt")
APPENDED = "minefleet_replay_appended_fragments_total"
TROUBLE = re.compile(r"Traceback|error [0-9a-f]{8} in|Exception|CRITICAL")


@dataclass(frozen=True, slots=True)
class Server:
    """A role under fuzz."""

    role: RoleProcess
    address: str
    services: tuple[ServiceDescriptor, ...]
    works: Callable[[], None]
    """Fails unless a valid sequence of calls works, and what was stored is unchanged."""
    known: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values that mean something to it, by the names of fields."""

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with grpc.insecure_channel(self.address, options=CLIENT_OPTIONS) as channel:
            yield channel

    def check(self) -> None:
        """It is alive and healthy, works, and has met nothing that it did not expect."""
        assert self.role.process is not None and self.role.process.poll() is None, self.role.log.read_text()
        assert self.role.get("/healthz") == (200, "alive\n")
        with self.channel() as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        self.works()
        log = self.role.log.read_text()
        assert not TROUBLE.search(log), log[-5000:]


def send(channel: Any, method: Method, requests: Sequence[bytes], metadata: Sequence[Any] = ()) -> grpc.StatusCode:
    """Sends these bytes, whatever the method takes; how the call ends. OK once an endless one has answered."""
    timeout_s = LEASE_S if method.name == "Lease" else TIMEOUT_S
    call = channel.stream_stream(method.path)(iter(requests), timeout=timeout_s, metadata=tuple(metadata))
    try:
        for _ in call:
            if method.is_endless:
                call.cancel()
                return grpc.StatusCode.OK
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        waited = method.name == "Lease" and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert waited or error.code() in method.statuses, f"{method.path} answered {error}"
        return error.code()
    return grpc.StatusCode.OK


@contextmanager
def replay(directory: Path) -> Iterator[Server]:
    """Replay with four fragments, of which one is leased."""
    process = ReplayProcess(directory, max_staleness=9, max_reuse=9)
    with process.running():
        with process.client() as client:
            assert [append(process, client, "kept", number) for number in range(4)] == ["stored"] * 4
            client.lease(1, steps=1, use_version=1, wait_s=0.0)
        known: dict[str, Sequence[Any]] = {
            "run_id": ["run-1"],
            "stream": ["kept"],
            "sequence": [0, 1, 2, 3],
            "chunk": [0, 1, 2, 3],
            "epoch": [1],
            "version": [1],
            "use_version": [1],
            "lease": [1, 2],
            "fragments": [1, 2],
            "schema_fingerprint": [process.server.run.schema.fingerprint],
        }
        yield Server(process, process.server.address, (REPLAY, STATUS, HEALTH), lambda: replay_works(process), known)
        assert process.end() == 0


def replay_works(process: ReplayProcess) -> None:
    """Its names are known, and it stores and explains."""
    with process.client(position=Position(run_id="run-1", epoch=1, version=1, resumed_version=0, first_version=1)) as c:
        assert append(process, c, "kept", 0) == "duplicate"
        outcome = append(process, c, f"after-{uuid.uuid4().hex}", 0)
        assert outcome in ("stored", "expired"), outcome
        assert len(c.reserve(1, [("next", 0)]).granted) == 1
    wait_for(lambda: balances(process))


def balances(process: ReplayProcess) -> bool:
    """Whether its ledger adds up. What `/metrics` says of it is renewed every second."""
    kept = sum(process.sample("minefleet_replay_ledger_fragments", bucket=bucket) for bucket in BUCKETS)
    return kept == sum(process.sample(APPENDED, outcome=outcome) for outcome in ("stored", "expired")) >= 4


@contextmanager
def parameters(directory: Path) -> Iterator[Server]:
    """Parameters with one version."""
    process = ParametersProcess(directory)
    weights = weights_of(1)
    with process.running():
        with process.client() as learner:
            learner.open_epoch(RUN)
            learner.publish(weights, iteration=1)
        known: dict[str, Sequence[Any]] = {
            "run_id": [RUN],
            "epoch": [1],
            "version": [0, 1],
            "expected_version": [1],
            "digest": sorted({piece.digest for piece in pieces_of(weights)}),
            "offset": [0, 1, 8],
        }
        works = lambda: parameters_work(process)  # noqa: E731
        yield Server(process, process.address, (PARAMETERS, STATUS, HEALTH), works, known)
        assert process.end() == 0


def parameters_work(process: ParametersProcess) -> None:
    """The newest version is whole, and the next is published."""
    with process.client() as client:
        for _ in range(2):
            info, found = client.fetch()
            wanted = weights_of(info.iteration)
            assert found.keys() == wanted.keys() and all((found[name] == wanted[name]).all() for name in wanted)
            client.open_epoch(RUN)
            client.publish(weights_of(info.iteration + 1), iteration=info.iteration + 1)


@contextmanager
def waiting(module: str, name: str, directory: Path, *services: Any) -> Iterator[Server]:
    """A learner or an actor whose peers are not there."""
    config = FleetConfig(env=EnvConfig(id="CartPole-v1"), services=_nobody())
    found = _checked()
    Run(directory=directory, config=config, schema=found.schema, architecture=found.architecture).write()
    role = RoleProcess(module, directory, "")
    process = role.start()
    try:
        card = directory / "roles" / f"{name}.json"
        wait_for(lambda: process.poll() is not None or _addresses(card)[0] != "")
        assert process.poll() is None, role.log.read_text()
        address, role.metrics_address = _addresses(card)
        yield Server(role, address, (*services, STATUS, HEALTH), lambda: None)
        assert role.end() == 0
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


@cache
def _checked() -> EnvPolicyCheck:
    return check_env_and_policy(FleetConfig(env=EnvConfig(id="CartPole-v1")))


def _nobody() -> ServicesConfig:
    endpoints = [EndpointConfig(address=free_address(), metrics_address=free_address()) for _ in range(3)]
    return ServicesConfig(replay=endpoints[:1], parameters=endpoints[1], learner=endpoints[2], drain_s=2.0)


def _addresses(card: Path) -> tuple[str, str]:
    if not card.exists():
        return "", ""
    found = json.loads(card.read_text())
    return found["address"], found["metrics_address"]


ROLES: dict[str, Callable[[Path], Any]] = {
    "replay": replay,
    "parameters": parameters,
    "learner": lambda directory: waiting("minefleet_learner", "learner", directory),
    "actor": lambda directory: waiting("minefleet_actor", "actor-0", directory, SLOTS, WORLDS),
}
