"""Bounds, corruption and the account, on a real store without a network. `make_world` is in conftest."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from minefleet.core.errors import ConfigError, OverloadedError, RejectedError
from minefleet_replay.engine.transaction import SLICE_CHUNKS
from minefleet_replay.storage.identity import ShardIdentity, read_identity, write_identity

Worlds = Callable[..., Any]


@pytest.mark.parametrize(("shard", "shards"), [(0, 2), (1, 3), (0, 1)])
def test_a_store_of_another_shard_is_refused(make_world: Worlds, shard: int, shards: int) -> None:
    world = make_world(shard=1, shards=2)
    world.append("s", 0)
    world.restart()
    world.replay.close()
    world.limits = replace(world.limits, shard=shard, shards=shards)
    with pytest.raises(ConfigError, match=rf"is shard 1 of 2 .* this process is shard {shard} of {shards}"):
        world.open()
    world.closed = True


def test_replay_evicts_the_oldest_unleased_chunks_to_make_room(make_world: Worlds) -> None:
    world = make_world(max_chunks=2)
    world.append("s", 0)
    world.lease(1, 1)
    world.append("s", 1)
    world.append("s", 2)
    assert world.figure("evicted_fragments") == 1
    assert world.faults() == []
    world.release(1)
    assert world.names(world.lease(2, 2)) == [("s", 0), ("s", 2)]


def test_an_append_is_refused_with_a_hint_when_all_is_leased(make_world: Worlds) -> None:
    world = make_world(max_chunks=1)
    world.append("s", 0)
    world.lease(1, 1)
    with pytest.raises(OverloadedError) as refusal:
        world.append("s", 1)
    assert refusal.value.retry_after_s > 0
    assert world.figure("appended_fragments") == 1
    world.ack(1)
    assert world.append("s", 1) == "stored"


def test_replay_evicts_to_keep_payloads_within_max_bytes(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**20)
    for number in range(8):
        world.append("s", number, payload=bytes(2**17))
        assert world.figure("payload_disk_bytes") <= world.limits.budget.kept_bytes
    assert world.figure("evicted_fragments") == 2
    with pytest.raises(RejectedError):
        world.append("s", 8, payload=bytes(2**20))


def test_a_growing_chunk_is_not_evicted_for_its_own_next_fragment(make_world: Worlds) -> None:
    world = make_world(per_chunk=2, max_chunks=1)
    world.append("s", 0)
    assert world.append("s", 1) == "stored"
    assert world.append("t", 0) == "stored"
    assert world.append("t", 1) == "stored"
    assert world.names(world.lease(1, 1)) == [("t", 0)]


def test_corrupt_bytes_are_quarantined_and_never_served(make_world: Worlds) -> None:
    world = make_world(per_chunk=2, max_reuse=2)
    world.append("s", 0)
    world.append("s", 1)
    world.spoil(1)
    lent = world.lease(1, 1)
    assert world.payloads(lent) == [b"payload", None]
    assert world.payloads(world.replay.chunks_in_lease(world.learner, 1, [])) == [b"payload", None]
    assert (world.figure("corrupt_fragments"), world.figure("leased_fragments")) == (1, 1)
    world.crash()
    assert world.faults() == []
    assert world.lease(2, 1) == []
    world.ack(1)
    assert (world.figure("trained_fragments"), world.figure("held_chunks")) == (1, 0)


def test_the_rest_of_a_chunk_with_corrupt_bytes_counts_as_corrupt_when_it_was_never_used(make_world: Worlds) -> None:
    world = make_world(per_chunk=2)
    world.append("s", 0)
    world.append("s", 1)
    world.spoil(0)
    world.payloads(world.lease(1, 1))
    world.release(1)
    assert (world.figure("corrupt_fragments"), world.figure("held_chunks")) == (2, 0)
    assert world.faults() == []


def test_drop_log_has_a_record_of_every_fragment_that_left(world: Any) -> None:
    world.append("s", 0, 1)
    world.lease(1, 1)
    world.ack(1)
    world.append("s", 1, 1)
    world.hear(9)
    world.append("s", 2, 1)
    rows = [row for _, row in world.replay.transactions.store.scan("drops")]
    assert [b'"reason": "trained"' in rows[0], b'"reason": "stale"' in rows[1], b'"stale"' in rows[2]] == [True] * 3


def test_replay_store_that_lost_what_a_tick_noted_as_synced_is_set_aside(world: Any) -> None:
    world.append("s", 0)
    world.replay.tick()
    assert read_identity(world.directory) == ShardIdentity(run_id="run-1", appended=1)
    world.replay.close()
    write_identity(world.directory, ShardIdentity(run_id="run-1", appended=2))
    world.replay = world.open()
    assert (world.figure("appended_fragments"), world.figure("corrupt_fragments")) == (1, 1)
    assert len(list(world.directory.glob("broken-*"))) == 1


def test_replay_warns_once_when_fewer_steps_fit_than_an_iteration_needs(make_world: Worlds, caplog: Any) -> None:
    world = make_world(max_bytes=2**20, steps_per_iteration=8)
    for number in range(9):
        world.append("s", number, payload=bytes(2**17))
    assert [record.getMessage() for record in caplog.records if "iteration needs 8" in record.getMessage()] == [
        "only 6 steps fit, an iteration needs 8: raise max_bytes"
    ]


def test_the_newest_episodes_and_departures_are_kept_and_older_ones_forgotten(make_world: Worlds) -> None:
    world = make_world(episodes_kept=3, drops_kept=2)
    world.hear(9)
    for number in range(5):
        world.report(("s", number))
        world.append("s", number, version=1)
    world.replay.tick()
    for _ in range(2):
        page, cursor = world.replay.read_episodes(world.learner, 0, 9)
        assert ([record.episode for record in page], cursor) == ([2, 3, 4], 5)
        assert len(list(world.replay.transactions.store.scan("drops"))) == 2
        world.crash()
    assert world.figure("appended_fragments") == 5


def test_stale_chunks_beyond_one_change_are_not_leased_and_their_room_is_free_at_once(make_world: Worlds) -> None:
    world = make_world(max_chunks=3 * SLICE_CHUNKS, max_reuse=2)
    for number in range(2 * SLICE_CHUNKS + 1):
        world.append("s", number)
    world.hear(9)
    assert world.figure("held_chunks") == SLICE_CHUNKS + 1
    assert world.lease(1, 1) == []
    assert world.reserve(("t", 0), version=9) == [True]
    world.crash()
    assert world.lease(1, 1) == []
    world.replay.tick()
    assert world.figure("held_chunks") == 0
    assert world.figure("expired_fragments") == 2 * SLICE_CHUNKS + 1
    assert world.faults() == []


def test_the_rest_of_a_chunk_that_is_about_to_leave_comes_too_late(make_world: Worlds) -> None:
    world = make_world(max_chunks=3 * SLICE_CHUNKS, per_chunk=2)
    for number in range(2 * SLICE_CHUNKS):
        world.append("s", number)
    world.append("t", 0)
    world.hear(9)
    assert world.append("t", 1, version=9) == "expired"
    world.replay.tick()
    assert (world.figure("held_chunks"), world.faults()) == (0, [])


def test_replay_makes_room_by_dead_chunks_before_it_evicts_any(make_world: Worlds) -> None:
    world = make_world(max_chunks=2 * SLICE_CHUNKS + 1)
    for number in range(2 * SLICE_CHUNKS + 1):
        world.append("s", number)
    world.hear(9)
    for number in range(SLICE_CHUNKS + 1):
        world.append("t", number, version=9)
    world.replay.tick()
    assert (world.figure("evicted_fragments"), world.figure("live_fragments")) == (0, SLICE_CHUNKS + 1)


def patiently(call: Callable[[], Any]) -> Any:
    """Calls until the store is not too busy: small ones have small buffers."""
    while True:
        with suppress(OverloadedError):
            return call()


def test_the_bytes_of_what_is_about_to_leave_make_room_before_anything_is_evicted(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**20, max_chunks=10_000)
    for number in range(2 * SLICE_CHUNKS + 1):
        patiently(partial(world.append, "s", number))
    patiently(partial(world.hear, 9))
    assert patiently(lambda: world.append("t", 0, version=9, payload=bytes(600_000))) == "stored"
    patiently(world.replay.tick)
    assert (world.figure("evicted_fragments"), world.figure("live_fragments")) == (0, 1)
    assert world.faults() == []


def test_chunks_of_an_abandoned_lineage_that_were_not_dropped_yet_are_not_leased_after_a_restart(
    make_world: Worlds,
) -> None:
    world = make_world(max_chunks=3 * SLICE_CHUNKS, max_staleness=9)
    for number in range(2 * SLICE_CHUNKS + 1):
        world.append("s", number, version=3)
    world.become(2, 6, 1, 6)
    assert world.figure("held_chunks") == 1
    world.restart()
    assert world.lease(1, 1) == []
    world.replay.tick()
    assert (world.figure("held_chunks"), world.faults()) == (0, [])
