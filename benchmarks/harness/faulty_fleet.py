"""Actors, replay and parameters as processes, over environments that fail, and what they leave behind.

There is no learner: this process publishes weights in its place, and in the end leases and reads all that was stored.
"""

import os
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import faulty
from harness.auditing import Audit, Name, audit
from harness.processes import resident_bytes
from harness.replaying import LEARNER, RUN_ID, Server, serving
from minefleet.config import (
    EnvConfig,
    FleetConfig,
    PolicyConfig,
    ReplayBufferConfig,
    RolloutConfig,
    ServicesConfig,
    WorkerConfig,
)
from minefleet.core.fragment import Fragment
from minefleet.launch.run_directory_setup import prepare
from minefleet.rpc.codec import decode
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_client import ReplayClient
from minefleet.runs.run_yaml import Run
from minefleet.v1 import episode_pb2, status_service_pb2

TAG = "MINEFLEET_BENCHMARK"
"""Environment variable by which all descendants of an actor are known, whatever became of their parents."""
PAGE = 64
LAST_LEASE = 2**31
BEAT_S = 0.05
GONE_S = 30.0
"""Longest that processes may take to be gone after their actor has ended."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """The kernel's figures of an actor."""

    rss_bytes: int
    descriptors: int
    mappings: int


@dataclass(slots=True)
class FaultyFleet:
    """Replay and parameters that run, and actors on demand."""

    run: Run
    replay: Server
    armed_by: Path
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)

    @contextmanager
    def starting(self, index: int = 0) -> Iterator[Server]:
        """An actor that has only just begun to start, and whose environments all start; drained in the end."""
        self.armed_by.unlink(missing_ok=True)
        os.environ[TAG] = self.tag
        with serving(self.run, "actor", index) as actor:
            del os.environ[TAG]
            yield actor

    @contextmanager
    def acting(self) -> Iterator[Server]:
        """An actor that acts, and whose environments may from here on fail to start."""
        with self.starting() as actor:
            while env_steps(actor) == 0:
                actor.outlive(BEAT_S)
            self.armed_by.touch()
            yield actor

    def left_behind(self) -> set[int]:
        """Processes of actors that are still there although no actor runs; waits for a while until there are none."""
        beat, waited_s = threading.Event(), 0.0
        while (left := tagged(self.tag)) and waited_s < GONE_S:
            beat.wait(BEAT_S)
            waited_s += BEAT_S
        return left

    def audit(self, *, killed: bool = False) -> Audit:
        """Takes everything from replay and looks at it; once."""
        length = int(self.run.config.env.kwargs["episode_length"])
        with ReplayClient(
            self.replay.address, identity=self.run.identity(status_service_pb2.ROLE_LEARNER), position=LEARNER
        ) as learner:
            found = audit(list(stored(learner)), list(logged(learner)), episode_length=length, killed=killed)
            counted = learner.lease(LAST_LEASE, steps=1, use_version=LEARNER.version, wait_s=0)
        told, held = (counted.env_steps, counted.env_failures), (found.steps, found.failures.total())
        if told != held and not killed:
            found.faults.append(f"actors counted (steps, failures) = {told}, replay holds {held}")
        return found


@contextmanager
def faulty_fleet(
    directory: Path, faults: Mapping[str, float], worker: WorkerConfig, **env: Any
) -> Iterator[FaultyFleet]:
    """A fleet in a directory of its own, whose weights are already published."""
    armed_by = directory / "armed"
    calm = EnvConfig(
        generator=f"{faulty.__file__}:Faulty",
        kwargs={"shape": [48], "armed_by": str(armed_by), "episode_length": 50} | env,
    )
    config = FleetConfig(
        env=calm,
        policy=PolicyConfig(hidden_size=32),
        services=ServicesConfig(drain_s=20.0),
        rollout_config=RolloutConfig(
            fragment_length=32,
            to_send_queue_size=64,
            worker_config=worker,
            replay_buffer_config=ReplayBufferConfig(pacing="off", max_chunks=10**6),
        ),
    )
    run = prepare(config, directory / "run")
    # After that, since a run does not begin whose very first reset fails.
    failing = replace(calm, kwargs=calm.kwargs | {"faults": dict(faults)})
    run = replace(run, config=replace(run.config, env=failing))
    run.write()
    with ExitStack() as stack:
        replay, parameters = (stack.enter_context(serving(run, role)) for role in ("replay", "parameters"))
        publish(run, parameters.address)
        yield FaultyFleet(run, replay, armed_by)


def publish(run: Run, address: str) -> None:
    """Publishes fresh weights twice: actors that find a first version draw the run's seed, which is for one of them."""
    from minefleet.policies import build
    from minefleet.policies.weight_arrays import to_numpy

    weights = to_numpy(build(run.config.policy, run.schema))
    with closing(ParametersClient(address)) as learner:
        learner.open_epoch(RUN_ID)
        for iteration in (1, 2):
            learner.publish(weights, iteration=iteration)


def stored(learner: ReplayClient) -> Iterator[tuple[Name, Fragment]]:
    """Leases and reads all fragments."""
    lease = 0
    for steps in (PAGE, 1):  # A lease lends as many as are asked for, or none.
        while learner.lease(lease := lease + 1, steps=steps, use_version=LEARNER.version, wait_s=0).chunks:
            for header, payload in learner.read(lease):
                yield (header.name.stream, header.name.sequence), decode(header, payload)
            learner.ack(lease)


def logged(learner: ReplayClient) -> Iterator[episode_pb2.EpisodeRecord]:
    """The episode log."""
    page = learner.read_episodes(0, PAGE)
    while page.episodes:
        yield from page.episodes
        page = learner.read_episodes(page.next_cursor, PAGE)


def env_steps(actor: Server) -> int:
    """Steps that an actor has taken."""
    return int(figure(actor, "minefleet_actor_env_steps_total"))


def figure(server: Server, name: str, label: str = "") -> float:
    """One of a role's metrics; 0 where it has none of that name, with that label."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            metric, _, value = line.rpartition(" ")
            if metric.split("{")[0] == name and label in metric:
                return float(value)
    return 0.0


def vitals(pid: int) -> Vitals:
    """Memory, open files and mapped files of a process."""
    directory = Path(f"/proc/{pid}")
    return Vitals(
        rss_bytes=resident_bytes(pid),
        descriptors=len(list((directory / "fd").iterdir())),
        mappings=len([line for line in (directory / "maps").read_text().splitlines() if len(line.split()) > 5]),
    )


def tagged(tag: str) -> set[int]:
    """Processes that were started with this tag, zombies aside."""
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if f"{TAG}={tag}" in _environment(path)}


def _environment(process: Path) -> list[str]:
    try:
        return (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
