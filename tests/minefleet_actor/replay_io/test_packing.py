"""An actor packs for a shard as configured, or by the distance of the shard."""

from pathlib import Path

import pytest

from minefleet.config.root_config import EndpointConfig
from minefleet.runs.run_yaml import Shard
from minefleet_actor.replay_io.connect import packing_for


@pytest.mark.parametrize(
    ("compression", "address", "packing"),
    [
        ("auto", "127.0.0.1:4001", "halving"),
        ("auto", "localhost:4001", "halving"),
        ("auto", "[::1]:4001", "halving"),
        ("auto", "192.0.2.7:4001", "zstd"),
        ("zstd", "127.0.0.1:4001", "zstd"),
        ("lz4", "127.0.0.1:4001", "lz4"),
        ("none", "192.0.2.7:4001", "none"),
    ],
)
def test_packing_for_a_shard_follows_the_key_or_its_distance(compression: str, address: str, packing: str) -> None:
    shard = Shard(index=0, name="replay", store=Path("store"), endpoint=EndpointConfig(address=address))
    assert packing_for(compression, shard) == packing
