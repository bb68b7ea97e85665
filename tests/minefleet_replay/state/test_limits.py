import json
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from minefleet.config.load import load
from minefleet.config.replay_partitioning import NUM_SHARDS, spread
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import Run
from minefleet_replay.state.limits import limits_of


def run_of(shards: int) -> Run:
    config = spread(load("cartpole", [f"{NUM_SHARDS}={shards}", "rollout_config.replay_buffer_config.max_chunks=100"]))
    return Run(directory=Path("/run"), config=config, schema=Schema(obs={}, action={}), architecture="")


@pytest.mark.parametrize("shards", range(1, 9))
def test_shard_limits_add_up_to_those_of_the_configuration(shards: int) -> None:
    run = run_of(shards)
    length = run.config.rollout_config.fragment_length
    limits = [limits_of(run, shard) for shard in range(shards)]
    assert sum(one.steps_per_iteration for one in limits) == length * run.config.train_config.fragments_per_iteration
    assert sum(one.max_steps for one in limits) == length * 100
    assert sum(one.max_bytes for one in limits) <= run.config.rollout_config.replay_buffer_config.max_bytes
    assert all(one.capacity_steps >= one.steps_per_iteration >= length for one in limits)
    assert [(one.shard, one.shards) for one in limits] == [(shard, shards) for shard in range(shards)]


def test_limits_follow_settings_and_go_back_without_them() -> None:
    limits, prefix = limits_of(run_of(1)), "rollout_config.replay_buffer_config."
    settings: dict[str, Any] = {
        "max_reuse": 3,
        "max_staleness": 2,
        "balance": "task",
        "task_weights": {"a": 2.0},
        "balance_limit": 2.0,
    }
    changed = limits.following(json.dumps({prefix + key: value for key, value in settings.items()}))
    assert changed == replace(limits, **settings)
    assert changed.live == settings
    assert changed.following("") == limits


def test_shard_limits_that_are_no_sums_are_the_same_on_every_shard() -> None:
    (only,), (first, _) = ([limits_of(run_of(shards), shard) for shard in range(shards)] for shards in (1, 2))
    assert (
        replace(
            first,
            steps_per_iteration=only.steps_per_iteration,
            max_steps=only.max_steps,
            max_bytes=only.max_bytes,
            shards=1,
        )
        == only
    )


@pytest.mark.parametrize("max_reuse", range(1, 5))
@pytest.mark.parametrize("max_staleness", range(5))
def test_capacity_is_what_can_be_used_before_it_is_too_stale_within_max_steps(
    max_reuse: int, max_staleness: int
) -> None:
    limits = limits_of(run_of(1))
    room_of = replace(limits, max_reuse=max_reuse, max_staleness=max_staleness, steps_per_iteration=80, max_steps=300)
    wanted = max(80, ceil(Fraction((max_staleness + 1) * 80, max_reuse)))
    assert room_of.capacity_steps == min(wanted, 300)
