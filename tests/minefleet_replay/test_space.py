"""The directory's bound on a real disk, at its worst moments. `make_world` is in conftest."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from minefleet.core.errors import OverloadedError

Worlds = Callable[..., Any]

MAX_BYTES = 2**26
SIZES = (30_000, 200_000, 30_000, 3_000_000)


def payloads() -> Iterator[bytes]:
    """Incompressible ones of mixed sizes, for ever."""
    noise = os.urandom(max(SIZES))
    return (noise[: SIZES[number % len(SIZES)]] for number in count())


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def fill(world: Any, stream: str, total_bytes: int) -> None:
    """Appends so much; checks the bound all along."""
    sent = 0
    for sequence, payload in enumerate(payloads()):
        world.append(stream, sequence, payload=payload)
        assert disk_bytes(world.directory) <= MAX_BYTES
        sent += len(payload)
        if sent > total_bytes:
            return


@pytest.mark.parametrize("order", ["oldest", "uniform"])
def test_chunks_that_a_learner_never_gives_back_do_not_cost_the_others(make_world: Worlds, order: str) -> None:
    world = make_world(max_bytes=MAX_BYTES, max_chunks=10_000)
    fill(world, "s", MAX_BYTES // 2)
    for number in range(1, 4):
        assert world.lease(number, 4, order=order)
    fill(world, "t", 2 * MAX_BYTES)
    assert world.figure("held_payload_bytes") > MAX_BYTES // 2
    assert all(
        None not in world.payloads(world.replay.chunks_in_lease(world.learner, number, [])) for number in range(1, 4)
    )
    assert world.faults() == []


def test_an_append_is_refused_when_a_part_of_each_file_is_leased(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**20, max_chunks=10_000)
    for number in range(6):
        world.append("s", number, payload=bytes(2**17))
    world.lease(1, 6)
    with pytest.raises(OverloadedError) as refusal:
        world.append("s", 6, payload=bytes(2**17))
    assert refusal.value.retry_after_s > 0
    world.ack(1)
    assert world.append("s", 6, payload=bytes(2**17)) == "stored"


def test_chunks_that_lie_in_several_files_leave_with_the_first(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**20, max_chunks=10_000, per_chunk=2)
    for number in range(40):
        world.append("s", number, payload=bytes(2**16))
    assert world.figure("live_fragments") >= 8
    assert (world.figure("appended_fragments"), world.faults()) == (40, [])


def test_small_payloads_with_large_headers_are_bounded_too(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**20, max_chunks=10**6)
    while (number := world.figure("appended_fragments")) < 3000:
        with suppress(OverloadedError):
            world.append("s" * 200, number)
    assert 0 < world.figure("held_chunks") < 1500
    assert world.faults() == []
