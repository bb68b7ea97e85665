from dataclasses import replace
from pathlib import Path

import pytest

from minefleet.config.load import load
from minefleet.config.shards import NUM_SHARDS, spread
from minefleet.run import Run
from minefleet.schema import Schema
from minefleet_replay.limits import limits_of


def run_of(shards: int) -> Run:
    config = spread(load("cartpole", [f"{NUM_SHARDS}={shards}", "rollout_config.replay_buffer_config.max_chunks=100"]))
    return Run(directory=Path("/run"), config=config, schema=Schema(obs={}, action={}), architecture="")


@pytest.mark.parametrize("shards", range(1, 9))
def test_the_limits_of_all_shards_add_up_to_the_configurations(shards: int) -> None:
    run = run_of(shards)
    limits = [limits_of(run, shard) for shard in range(shards)]
    assert sum(one.fragments_per_iteration for one in limits) == run.config.train_config.fragments_per_iteration
    assert sum(one.max_chunks for one in limits) == 100
    assert sum(one.max_bytes for one in limits) <= run.config.rollout_config.replay_buffer_config.max_bytes
    assert all(one.room_chunks >= one.chunks_per_iteration >= 1 for one in limits)
    assert [(one.shard, one.shards) for one in limits] == [(shard, shards) for shard in range(shards)]


def test_what_is_no_sum_is_the_same_on_every_shard() -> None:
    (only,), (first, _) = ([limits_of(run_of(shards), shard) for shard in range(shards)] for shards in (1, 2))
    assert replace(first, fragments_per_iteration=8, max_chunks=100, max_bytes=only.max_bytes, shards=1) == only
