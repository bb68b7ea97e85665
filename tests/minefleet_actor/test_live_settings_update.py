"""A real actor takes the settings of each version: what they change while it plays, and what a kill leaves of them."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.role_process import RoleProcess, wait_for

from minefleet.config.load import from_data
from minefleet.launch.run_directory_setup import prepare
from minefleet.monitoring.status import read_status
from minefleet.policies import build
from minefleet.policies.weight_arrays import to_numpy
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2

pytestmark = pytest.mark.fleet

WORKER = "rollout_config.worker_config."
NUM_ENVS, RESTARTS, MEMORY = (WORKER + key for key in ("num_envs", "restart_interval", "max_rss_bytes"))
VIDEOS = "train_config.record_video_interval"
CONFIG: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "policy": {"hidden_size": 16},
    "train_config": {"record_video_interval": 1000},
    "rollout_config": {
        "fragment_length": 8,
        "worker_config": {"num_envs": 2},
        "replay_buffer_config": {"pacing": "off", "max_reuse": 10, "max_staleness": 100},
    },
}


class Incarnation(NamedTuple):
    """An actor, as its fragments show it."""

    oldest_version: int
    newest_version: int
    slots: int


class Ring:
    """A run with parameters and replay, a learner that only publishes, and an actor."""

    def __init__(self, run: Run, learner: ParametersClient) -> None:
        self.run = run
        self.learner = learner
        self.weights = to_numpy(build(run.config.policy, run.schema))
        self.actor = RoleProcess("minefleet_actor", run.directory, "")
        self.process = self.actor.start()

    def kill(self) -> None:
        """Kills the actor."""
        self.process.kill()
        self.process.wait()

    def publish(self, *, promoted: int = 0, **settings: float) -> int:
        """Publishes the next version, with settings by `NUM_ENVS` and the like."""
        names = {"num_envs": NUM_ENVS, "restarts": RESTARTS, "memory": MEMORY, "videos": VIDEOS}
        text = json.dumps({names[name]: value for name, value in settings.items()})
        return self.learner.publish(self.weights, iteration=0, promoted=promoted, settings=text)

    def stats(self, role: str = "actor-0") -> dict[str, float]:
        return next((dict(one.stats) for one in read_status(self.run.directory).roles if one.name == role), {})

    def plays(self, version: int, slots: int) -> None:
        """Waits until the actor plays with a version, and replay has something of it; then it has so many slots."""
        wait_for(lambda: self.stats().get("policy_version") == version)
        assert self.stats()["slots"] == slots
        assert self.process.poll() is None, self.actor.log.read_text()
        held = self.stats("replay")["appended_fragments"]
        wait_for(lambda: self.stats("replay")["appended_fragments"] > held + 4 * slots)

    def incarnations(self) -> list[Incarnation]:
        """The actors that fragments in replay are of, in the order of their versions."""
        role, position = status_service_pb2.ROLE_LEARNER, Position(run_id="run", epoch=1, version=1, first_version=1)
        with ReplayClient(
            self.run.config.services.replay[0].address, identity=self.run.identity(role), position=position
        ) as replay:
            stored = int(replay.describe().stats["ready_steps"])
            assert replay.lease(1, steps=stored, use_version=9, wait_s=30.0).chunks
            headers = [header for header, _ in replay.read(1)]
        found: dict[str, list[Any]] = {}
        for header in headers:
            found.setdefault(header.name.stream.rpartition("-")[0], []).append(header)
        return sorted(
            Incarnation(
                min(header.oldest_version for header in mine),
                max(header.newest_version for header in mine),
                len({header.name.stream for header in mine}),
            )
            for mine in found.values()
        )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ring]]:
    """Starts the ring, whose first version has no settings."""
    with ExitStack() as stack:

        def begin(**rollout: Any) -> Ring:
            config = CONFIG | {"rollout_config": CONFIG["rollout_config"] | rollout}
            run = prepare(from_data(config, "the test"), tmp_path)
            services = run.config.services
            for module, endpoint in (
                ("minefleet_parameters", services.parameters),
                ("minefleet_replay", services.replay[0]),
            ):
                stack.enter_context(RoleProcess(module, tmp_path, endpoint.metrics_address).running())
            learner = ParametersClient(services.parameters.address)
            stack.callback(learner.close)
            learner.open_epoch("run")
            ring = Ring(run, learner)
            stack.callback(ring.kill)
            ring.publish()
            return ring

        yield begin


def test_actor_plays_each_step_with_the_environments_of_its_version(start: Callable[..., Ring]) -> None:
    ring = start()
    ring.plays(1, slots=2)
    ring.plays(ring.publish(num_envs=4), slots=4)
    ring.plays(ring.publish(num_envs=4, videos=0), slots=4)
    ring.plays(ring.publish(num_envs=1, restarts=0.5, memory=2**40), slots=1)
    ring.plays(ring.publish(), slots=2)
    assert ring.actor.end() == 0, ring.actor.log.read_text()
    assert ring.incarnations() == [
        Incarnation(1, 1, 2),
        Incarnation(2, 3, 4),
        Incarnation(4, 4, 1),
        Incarnation(5, 5, 2),
    ]


def test_actor_that_is_killed_before_it_takes_settings_starts_with_them(start: Callable[..., Ring]) -> None:
    ring = start()
    ring.plays(1, slots=2)
    ring.process.send_signal(signal.SIGSTOP)
    version = ring.publish(num_envs=3)
    ring.kill()
    ring.process = ring.actor.start()
    ring.plays(version, slots=3)
    assert ring.actor.end() == 0, ring.actor.log.read_text()
    assert ring.incarnations() == [Incarnation(1, 1, 2), Incarnation(2, 2, 3)]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_actor_acts_by_promoted_and_new_versions_as_its_slots_are_under_the_settings_that_it_starts_with(
    start: Callable[..., Ring], before: int, after: int
) -> None:
    ring = start(canary_share=0.5, worker_config={"num_envs": before})
    ring.plays(1, slots=before)
    ring.publish(num_envs=after, promoted=1)
    wait_for(lambda: ring.stats().get("slots") == after)
    ring.plays(min(3 - after, 2), slots=after)
    assert ring.actor.end() == 0, ring.actor.log.read_text()
    assert ring.incarnations()[-1] == Incarnation(3 - after, 2, after)
