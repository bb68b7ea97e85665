"""A deterministic actor makes the same fragments again, byte for byte: real processes, twice."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.role_process import RoleProcess, wait_for

from minefleet.config.load import from_data
from minefleet.launch.run_directory_setup import prepare
from minefleet.policies import build
from minefleet.policies.weight_arrays import Weights, to_numpy
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2

SLOTS = 5
LENGTH = 8
WANTED = 60
"""Fragments at least: a dozen of each slot, in which a dozen of its episodes end."""
LEARNER = Position(run_id="run", epoch=1, version=1, resumed_version=0, first_version=1)
CONFIG = {
    "seed": 7,
    "env": {"id": "CartPole-v1"},
    "policy": {"gru_size": 16, "hidden_size": 16},
    "rollout_config": {
        "fragment_length": LENGTH,
        "worker_config": {"num_envs": SLOTS, "envs_per_process": 2, "batch_size": 4, "deterministic": True},
        "replay_buffer_config": {"pacing": "off", "max_reuse": 10},
    },
}


def played(directory: Path, weights: Weights | None) -> tuple[dict[tuple[str, int], bytes], Weights]:
    """The payloads by name that an actor with these weights has stored, and the weights; None draws them."""
    run = prepare(from_data(CONFIG, "the test"), directory)
    weights = weights or to_numpy(build(run.config.policy, run.schema))
    services = run.config.services
    with ExitStack() as stack:
        for module, endpoint in (
            ("minefleet_parameters", services.parameters),
            ("minefleet_replay", services.replay[0]),
        ):
            stack.enter_context(RoleProcess(module, directory, endpoint.metrics_address).running())
        learner = ParametersClient(services.parameters.address)
        stack.callback(learner.close)
        learner.open_epoch("run")
        learner.publish(weights, iteration=0)
        replay = stack.enter_context(
            ReplayClient(
                services.replay[0].address, identity=run.identity(status_service_pb2.ROLE_LEARNER), position=LEARNER
            )
        )
        act_until(run, lambda: replay.describe().stats["appended_fragments"] >= WANTED)
        stored = int(replay.describe().stats["appended_steps"])
        assert replay.lease(1, steps=stored, use_version=1, wait_s=30.0).chunks
        return {(header.name.stream, header.name.sequence): payload for header, payload in replay.read(1)}, weights


def act_until(run: Run, enough: Callable[[], bool]) -> None:
    """Runs an actor until there is enough, and drains it."""
    actor = RoleProcess("minefleet_actor", run.directory, "")
    process = actor.start()
    try:
        wait_for(lambda: enough() or process.poll() is not None)
        assert process.poll() is None, actor.log.read_text()
        assert actor.end() == 0, actor.log.read_text()
    finally:
        process.kill()


@pytest.mark.fleet
def test_deterministic_actor_with_the_same_seed_and_weights_makes_the_same_fragments(tmp_path: Path) -> None:
    one, weights = played(tmp_path / "one", None)
    other, _ = played(tmp_path / "other", weights)
    assert {stream for stream, _ in one} == {f"actor-0-1-{slot}" for slot in range(SLOTS)}
    lasts = {max(name for name in stored if name[0] == stream) for stored in (one, other) for stream, _ in stored}
    whole = (one.keys() & other.keys()) - lasts
    assert len(whole) > WANTED // 2
    assert all(one[name] == other[name] for name in whole)
    assert len({one[name] for name in whole}) == len(whole)
