"""Replay is split into shards: the endpoints, the parts, and the place of each shard's store."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.config.replay_partitioning import NUM_SHARDS, fragments_per_iteration, share, spread
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import Run

SIZE = "train_config.batches_per_iteration"
PER_CHUNK = "rollout_config.replay_buffer_config.fragments_per_chunk"


def spread_cartpole(*overrides: str) -> FleetConfig:
    return spread(load("cartpole", overrides))


def addresses(config: FleetConfig) -> list[str]:
    return [endpoint.address for endpoint in config.services.replay]


def run_of(config: FleetConfig) -> Run:
    return Run(directory=Path("/run"), config=config, schema=Schema(obs={}, action={}), architecture="")


@pytest.mark.parametrize("total", range(20))
@pytest.mark.parametrize("shards", range(1, 8))
def test_shares_of_shards_add_up_and_differ_by_at_most_one(total: int, shards: int) -> None:
    parts = [share(total, shards, index) for index in range(shards)]
    assert sum(parts) == total
    assert parts == sorted(parts, reverse=True)
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize("shards", range(1, 8))
def test_share_of_a_shard_of_what_is_allowed_covers_its_share_of_what_is_wanted(shards: int) -> None:
    for wanted in range(20):
        for allowed in range(wanted, 40):
            assert all(share(allowed, shards, index) >= share(wanted, shards, index) for index in range(shards))


def test_an_iteration_is_split_in_fragments() -> None:
    config = spread_cartpole(f"{NUM_SHARDS}=3", f"{PER_CHUNK}=2", f"{SIZE}=1", "train_config.batch_size_per_gpu=8")
    assert [fragments_per_iteration(config, index) for index in range(3)] == [3, 3, 2]


def test_replay_has_one_shard_by_default() -> None:
    run = run_of(spread_cartpole())
    (shard,) = run.shards
    assert (shard.index, shard.name, shard.store) == (0, "replay", run.replay)


def test_several_shards_have_names_stores_and_endpoints_of_their_own() -> None:
    run = run_of(spread_cartpole(f"{NUM_SHARDS}=2"))
    assert [shard.name for shard in run.shards] == ["replay-0", "replay-1"]
    assert [shard.store for shard in run.shards] == [run.replay / "0", run.replay / "1"]
    assert [shard.endpoint for shard in run.shards] == run.config.services.replay


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["services.replay.address=h:1"], ["h:1"]),
        (["services.replay[0].address=h:1"], ["h:1"]),
        (["services.replay[0].address=h:1", "services.replay[1].address=h:2"], ["h:1", "h:2"]),
        (["services.replay=[{address: h:1}, {address: h:2}]"], ["h:1", "h:2"]),
        (["services.replay=[{address: h:1}, {address: h:2}]", f"{NUM_SHARDS}=2"], ["h:1", "h:2"]),
        ([f"{NUM_SHARDS}=3", "services.replay.address=0.0.0.0:0"], ["0.0.0.0:0"] * 3),
    ],
)
def test_replay_endpoints_by_count_or_list_are_one_per_shard(overrides: Sequence[str], expected: list[str]) -> None:
    config = spread_cartpole(*overrides)
    assert addresses(config) == expected
    assert config.rollout_config.replay_buffer_config.database_config.num_shards == len(expected)
    assert spread(config) == config


def test_override_of_one_replay_endpoint_keeps_its_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("services: {replay: [{address: 'h:1'}, {address: 'h:2', metrics_address: 'h:3'}]}\n")
    endpoints = load(str(path), ["services.replay[1].address=h:4"]).services.replay
    assert [(endpoint.address, endpoint.metrics_address) for endpoint in endpoints] == [
        ("h:1", "127.0.0.1:0"),
        ("h:4", "h:3"),
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["services.replay[2].address=h:1"], r"replay\[2\] leaves a gap: replay has 1 entries"),
        (["services.replay=[h:1]"], r"services\.replay .* must be a section of keys, got 'h:1'"),
        (["services.replay=[]"], "must list at least one endpoint"),
        (["services.replay[0].adress=h:1"], r"the nearest is services\.replay\.address"),
        (
            [f"{NUM_SHARDS}=2", "services.replay.address=h:1"],
            r"services\.replay\.address=h:1 cannot serve 2 shards .* services\.replay\[0\]\.address=",
        ),
        ([f"{NUM_SHARDS}=3", "services.replay=[{}, {}]"], r"lists 2 shards, but .*num_shards is 3"),
        ([f"{NUM_SHARDS}=9", f"{SIZE}=1", "train_config.batch_size_per_gpu=8"], r"num_shards must be <= .* 8 .* got 9"),
        (
            [f"{NUM_SHARDS}=2", "rollout_config.worker_config.num_envs=1"],
            r"num_shards must be <= the environments of all actors.* 1 .* got 2",
        ),
        ([f"{NUM_SHARDS}=0"], r"num_shards must be >= 1, got 0"),
        (
            [f"{NUM_SHARDS}=2", "rollout_config.replay_buffer_config.max_bytes=1048576"],
            r"max_bytes must be >= 2097152, got 1048576",
        ),
    ],
)
def test_shards_that_cannot_work_are_refused_by_their_keys(overrides: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spread_cartpole(*overrides)


def test_roles_with_other_numbers_of_shards_refuse_each_other() -> None:
    one, two = run_of(spread_cartpole()).contract(), run_of(spread_cartpole(f"{NUM_SHARDS}=2")).contract()
    assert [key for key in one if one[key] != two[key]] == [NUM_SHARDS]
