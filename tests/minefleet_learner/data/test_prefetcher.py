"""Leased fragments are read by as many readers as configured, each its share."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest
import torch

from harness.training_ours import InMemory
from minefleet.core.fragment import Fragment
from minefleet.rpc.codec import encode
from minefleet.rpc.replay_types import Packed
from minefleet.v1 import fragment_pb2
from minefleet.v1.replay_service_pb2 import LeasedChunk
from minefleet_learner.data.collate import Collator
from minefleet_learner.data.prefetcher import Prefetcher

CHUNKS = 6


class Noted(InMemory):
    """A lease of fragments in memory, which notes who reads what."""

    def __init__(self, packed: Sequence[Packed]) -> None:
        super().__init__(packed)
        self.shares: list[list[str]] = []

    def read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[Packed]:
        self.shares.append([chunk.name.stream for chunk in chunks])
        return super().read(number, chunks)


@pytest.mark.parametrize("readers", [1, 3])
def test_prefetcher_readers_read_their_shares_and_nothing_twice(
    make_fragment: Callable[..., Fragment], readers: int
) -> None:
    replay = Noted(
        [
            encode(fragment_pb2.FragmentHeader(name=fragment_pb2.FragmentName(stream=f"s{seed}")), make_fragment(seed))
            for seed in range(CHUNKS)
        ]
    )
    prefetcher = Prefetcher(
        replay,
        order="least_used",
        readers=readers,
        collator=Collator(torch.device("cpu"), decode_cache_bytes=2**20, threads=readers),
        burn_in=0,
        ahead=False,
        may_be_empty=False,
        stopping=threading.Event(),
        report=lambda _: None,
    )
    with closing(prefetcher):
        _, batch = prefetcher.take(1)
    assert [len(share) for share in replay.shares] == [CHUNKS // readers] * readers
    assert batch is not None
    assert {stream for stream, _ in batch.names} == {stream for share in replay.shares for stream in share}
    assert len(batch) == CHUNKS
