"""Actors as processes, with the replay and the parameters of their run: what `benchmarks/actor_*.py` measure."""

import os
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from harness.replaying import RUN_ID, Server, scratch, serving
from minefleet.config.load import from_data
from minefleet.launch.run_directory_setup import prepare
from minefleet.policies import build
from minefleet.policies.weight_arrays import to_numpy
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_client import ReplayClient
from minefleet.runs.run_yaml import Run

SLOTS = 64
SHARED_CORES = 2
START_POLL_S = 0.5
STEPS = "minefleet_actor_env_steps_total"


def share_cores() -> None:
    """Ties this process and its children to two cores: one side of a comparison runs on as many as another."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SHARED_CORES])


def config_of(
    env: Mapping[str, Any], policy: Mapping[str, Any], worker: Mapping[str, Any], *, actors: int = 1, **rollout: Any
) -> dict[str, Any]:
    """The configuration of `actors` that have `SLOTS` environments together and need not be granted what they make."""
    buffer = {"pacing": "off", "max_reuse": 1_000_000, **rollout.pop("replay_buffer_config", {})}
    return {
        "env": dict(env),
        "policy": dict(policy),
        "rollout_config": {
            **rollout,
            "num_rollout_workers": actors,
            "replay_buffer_config": buffer,
            "worker_config": {"num_envs": SLOTS // actors, **worker},
        },
    }


def act(config: Mapping[str, Any], *, warm_up_s: float, seconds: float) -> float:
    """Steps per second of all actors of a configuration, whose weights do not change.

    Raises:
        RuntimeError: If a step that they took is not in replay when they have drained.
    """
    with scratch() as directory, ExitStack() as stack:
        run = prepare(from_data(config, "the benchmark"), directory / "run")
        replay = stack.enter_context(serving(run))
        publish(run, stack.enter_context(serving(run, "parameters")))
        with ExitStack() as acting:
            indices = range(run.config.rollout_config.num_rollout_workers)
            actors = [acting.enter_context(serving(run, "actor", index)) for index in indices]
            while min(sample(actor, STEPS) for actor in actors) < SLOTS:
                actors[0].outlive(START_POLL_S)
            actors[0].outlive(warm_up_s)
            began_s, before = time.monotonic(), steps(actors)
            actors[0].outlive(seconds)
            rate = (steps(actors) - before) / (time.monotonic() - began_s)
        check(run, replay)
    return rate


def steps(actors: Sequence[Server]) -> float:
    """Steps that the actors took so far."""
    return sum(sample(actor, STEPS) for actor in actors)


def publish(run: Run, parameters: Server) -> None:
    """Publishes fresh weights as the first version."""
    client = ParametersClient(parameters.address)
    client.open_epoch(RUN_ID)
    client.publish(to_numpy(build(run.config.policy, run.schema)), iteration=0)
    client.close()


def sample(server: Server, name: str) -> float:
    """A metric without labels, as the process shows it; 0 before it does."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def check(run: Run, replay: Server) -> None:
    """Compares the fragments in replay with the steps that the drained actors say they took."""
    with ReplayClient(replay.address) as client:
        figures = client.describe().stats
    length, acked = run.config.rollout_config.fragment_length, figures["appended_fragments"]
    taken = figures["env_steps"]
    if not (acked - SLOTS) * length <= taken <= acked * length:
        raise RuntimeError(f"the actors took {taken:.0f} steps, replay has {acked:.0f} fragments of {length}")
