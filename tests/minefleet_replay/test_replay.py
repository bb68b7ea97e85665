"""The promises of replay, on a real store, without a network. `make_world` is in conftest."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minefleet.errors import (
    ConfigError,
    ConflictError,
    ContractError,
    CorruptError,
    FencedError,
    NotFoundError,
    OverloadedError,
    RejectedError,
    RunMismatchError,
)
from minefleet_replay.identity import Identity, read_identity, write_identity
from minefleet_replay.leases import CLOSED_KEPT, MAX_OPEN
from minefleet_replay.progress import Counts
from minefleet_replay.rows import number_key

Worlds = Callable[..., Any]


def names(lent: list[Any]) -> list[tuple[str, int]]:
    return [tuple(chunk.name) for chunk in lent]


def payloads(world: Any, lent: list[Any]) -> list[bytes | None]:
    stored = (world.replay.fetch(chunk.name, fragment) for chunk in lent for fragment in chunk.fragments)
    return [pair[1] if pair is not None else None for pair in stored]


def spoil(world: Any, number: int, payload: bytes = b"rotten") -> None:
    change = world.replay.keeper.change()
    change.put("data", number_key(number), payload)
    world.replay.keeper.commit(change)


# Appending: R1 and R3.


def test_what_was_appended_is_there_after_a_crash(world: Any) -> None:
    world.append("s", 0, payload=b"first")
    world.report(("s", 0), actor="a", progress=Counts(10, 1))
    world.crash()
    assert payloads(world, world.lease(1, 1)) == [b"first"]
    assert world.replay.read_episodes(world.learner, 0, 9)[0][0].stream == "s"
    assert world.replay.progress() == Counts(10, 1)


def test_appending_a_name_again_stores_nothing(world: Any) -> None:
    assert [world.append("s", 0), world.append("s", 0)] == ["stored", "duplicate"]
    world.crash()
    assert world.append("s", 0) == "duplicate"
    assert world.figure("appended_fragments") == 1


def test_a_name_never_means_other_bytes(world: Any) -> None:
    world.append("s", 0)
    with pytest.raises(ConflictError):
        world.append("s", 0, payload=b"other")
    assert payloads(world, world.lease(1, 1)) == [b"payload"]


def test_a_name_is_known_after_its_fragment_has_left(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1)
    world.ack(1)
    world.crash()
    assert world.append("s", 0) == "duplicate"
    with pytest.raises(ConflictError):
        world.append("s", 0, payload=b"other")


def test_nothing_follows_the_fragment_that_closes_a_stream(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=4)
    world.append("s", 0, closes=True)
    with pytest.raises(RejectedError):
        world.append("s", 1)


def test_an_episode_is_recorded_once_and_read_in_order_from_a_cursor(world: Any) -> None:
    world.report(("s", 0), ("t", 0), ("s", 0))
    world.report(("s", 0), ("s", 1))
    world.crash()
    world.report(("t", 0))
    page, cursor = world.replay.read_episodes(world.learner, 0, 2)
    rest, end = world.replay.read_episodes(world.learner, cursor, 9)
    assert [(one.stream, one.episode) for one in (*page, *rest)] == [("s", 0), ("t", 0), ("s", 1)]
    assert world.replay.read_episodes(world.learner, end, 9) == ([], end)
    assert world.replay.read_episodes(world.learner, 99, 9) == ([], end)


def test_episodes_are_recorded_whatever_becomes_of_fragments(world: Any) -> None:
    world.hear(9)
    assert world.append("s", 0, version=1) == "expired"
    world.report(("s", 0))
    assert len(world.replay.read_episodes(world.learner, 0, 9)[0]) == 1


def test_progress_is_the_sum_of_maxima_and_never_goes_back(world: Any) -> None:
    world.report(actor="a", progress=Counts(10, 1))
    world.report(actor="b", progress=Counts(5, 0))
    world.report(actor="a", progress=Counts(7, 2))
    assert world.replay.progress() == Counts(15, 2)
    world.crash()
    assert world.replay.progress() == Counts(15, 2)


# Runs.


def test_the_first_call_binds_the_store_and_another_run_is_refused_by_name(world: Any) -> None:
    world.crash()
    assert world.runs == ["run-1", "run-1"]
    with pytest.raises(RunMismatchError, match=r"run-1.*run-2"):
        world.replay.bind("run-2")
    with pytest.raises(RunMismatchError):
        world.replay.bind("")


def test_fragments_of_another_schema_are_refused(make_world: Worlds) -> None:
    world = make_world(schema_fingerprint="abc")
    with pytest.raises(ContractError, match=r"def.*abc"):
        world.replay.bind("run-1", "def")


def test_a_store_is_not_opened_with_another_chunk_size_or_schema(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2, schema_fingerprint="abc")
    world.replay.close()
    fitting = world.limits
    world.limits = replace(fitting, fragments_per_chunk=1)
    with pytest.raises(ConfigError, match="fragments_per_chunk"):
        world.open()
    world.limits = replace(fitting, schema_fingerprint="x")
    with pytest.raises(ContractError):
        world.open()
    world.limits = fitting
    world.replay = world.open()


# Leases: R4 and R5 and R6.


def test_a_use_is_charged_before_the_lease_is_answered_and_survives_a_crash(world: Any) -> None:
    world.append("s", 0)
    lent = world.lease(1, 1)
    world.crash()
    assert world.lease(2, 1) == []
    assert names(world.lease(1, 1)) == names(lent)


def test_leasing_again_by_the_same_number_charges_nothing(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.append("s", 0)
    assert names(world.lease(1, 1)) == names(world.lease(1, 1))
    assert names(world.lease(2, 1)) == [("s", 0)]
    assert world.lease(3, 1) == []


def test_acked_uses_and_open_leases_never_exceed_max_reuse(make_world: Worlds) -> None:
    world = make_world(max_reuse=3)
    world.append("s", 0)
    world.lease(1, 1)
    world.ack(1)
    world.lease(2, 1)
    world.lease(3, 1)
    world.crash()
    assert world.lease(4, 1) == []
    world.ack(2)
    world.ack(3)
    assert world.figure("trained_fragments") == 1
    assert world.figure("held_chunks") == 0


def test_a_released_lease_refunds_its_use(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1)
    world.release(1)
    world.crash()
    assert [chunk.uses for chunk in world.lease(2, 1)] == [0]


def test_ack_and_release_may_be_repeated_but_not_mixed(world: Any) -> None:
    world.append("s", 0)
    world.append("s", 1)
    world.lease(1, 1)
    world.lease(2, 1)
    world.ack(1)
    world.release(2)
    world.crash()
    world.ack(1)
    world.release(2)
    for verb, number in ((world.release, 1), (world.ack, 2), (world.ack, 3)):
        with pytest.raises(NotFoundError):
            verb(number)
    with pytest.raises(RejectedError):
        world.lease(1, 1)


def test_open_leases_are_capped(world: Any) -> None:
    for number in range(MAX_OPEN + 1):
        world.append("s", number)
    for number in range(MAX_OPEN):
        assert world.lease(number, 1)
    with pytest.raises(OverloadedError):
        world.lease(MAX_OPEN, 1)


def test_closed_leases_are_forgotten_in_the_end(make_world: Worlds) -> None:
    world = make_world(max_reuse=2 * CLOSED_KEPT)
    world.append("s", 0)
    for number in range(CLOSED_KEPT + 2):
        world.lease(number, 1)
        world.ack(number)
    assert len(list(world.replay.keeper.store.scan("leases"))) == CLOSED_KEPT
    world.ack(2)
    with pytest.raises(NotFoundError):
        world.ack(1)


def test_a_newer_epoch_gets_the_unacked_leases_back_and_fences_the_older_everywhere(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1)
    older = world.learner
    world.become(epoch=2, version=2, resumed=1, first=2)
    world.crash()
    assert names(world.lease(1, 1)) == [("s", 0)]
    world.learner = older
    with pytest.raises(FencedError):
        world.ack(1)
    with pytest.raises(FencedError):
        world.lease(1, 1)
    with pytest.raises(FencedError):
        world.replay.lent(older, 1, [])
    with pytest.raises(FencedError):
        world.replay.read_episodes(older, 0, 1)


def test_an_older_epoch_is_not_heard(world: Any) -> None:
    older = world.learner
    world.become(epoch=2, version=2, resumed=1, first=2)
    with pytest.raises(FencedError):
        world.replay.read_episodes(replace(older, version=9), 0, 1)
    assert world.figure("newest_version") == 2


def test_a_lease_waits_until_enough_is_there(world: Any) -> None:
    lent: list[Any] = []
    waiting = threading.Thread(target=lambda: lent.extend(world.lease(1, 2, wait_s=60)))
    world.append("s", 0)
    waiting.start()
    world.append("s", 1)
    waiting.join()
    assert names(lent) == [("s", 0), ("s", 1)]


def test_a_lease_that_runs_out_of_time_charges_nothing(world: Any) -> None:
    world.append("s", 0)
    assert world.lease(1, 2, wait_s=0.01) == []
    assert world.figure("open_leases") == 0
    assert names(world.lease(1, 1)) == [("s", 0)]


def test_draining_ends_the_wait(world: Any) -> None:
    waiting = threading.Thread(target=lambda: world.lease(1, 2, wait_s=600))
    waiting.start()
    world.replay.stop_waiting()
    waiting.join()


def test_a_short_chunk_of_a_closed_stream_counts_as_one_chunk(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2)
    world.append("s", 0, closes=True)
    world.append("t", 0)
    world.append("t", 1)
    assert [len(chunk.fragments) for chunk in world.lease(1, 2)] == [1, 2]


def test_reading_is_repeatable_while_the_lease_is_open(world: Any) -> None:
    world.append("s", 0)
    world.append("s", 1)
    lent = world.lease(1, 2)
    assert payloads(world, lent) == payloads(world, world.replay.lent(world.learner, 1, [])) == [b"payload"] * 2
    assert names(world.replay.lent(world.learner, 1, [lent[1].name])) == [("s", 1)]
    world.ack(1)
    with pytest.raises(NotFoundError):
        world.replay.lent(world.learner, 1, [])
    with pytest.raises(NotFoundError):
        payloads(world, lent)


# Staleness and lineage: R4 and R7.


def test_stale_chunks_are_dropped_at_append_at_a_new_version_and_at_a_lease_for_a_later_one(world: Any) -> None:
    world.hear(5)
    assert [world.append("s", number, version) for number, version in enumerate((3, 4, 5))] == [
        "expired",
        "stored",
        "stored",
    ]
    assert world.lease(1, 1, use_version=7) == []
    assert (world.figure("held_chunks"), world.figure("expired_fragments")) == (0, 3)
    world.append("s", 3, 6)
    world.hear(8)
    assert world.figure("held_chunks") == 0


def test_no_chunk_is_leased_that_would_be_too_stale_when_it_is_used(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.hear(5)
    world.append("s", 0, 4)
    world.append("s", 1, 5)
    world.lease(1, 2, use_version=5)
    assert names(world.lease(2, 1, use_version=6)) == [("s", 1)]
    assert world.lease(3, 1, use_version=6) == []


def test_a_chunk_is_as_stale_as_its_oldest_step(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2)
    world.hear(3)
    world.append("s", 0, 2, newest=3)
    world.append("s", 1, 3)
    world.hear(4)
    assert (world.figure("expired_fragments"), world.figure("held_chunks")) == (2, 0)


def test_the_rest_of_a_dropped_chunk_is_dropped_as_it_comes(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2)
    world.hear(3)
    assert world.append("s", 0, 1) == "expired"
    assert world.append("s", 1, 3) == "expired"
    assert world.append("t", 0, 3) == "stored"
    assert world.append("t", 1, 1) == "expired"
    assert (world.figure("expired_fragments"), world.figure("held_chunks")) == (4, 0)


def test_versions_from_the_future_are_normal(world: Any) -> None:
    assert world.append("s", 0, version=50) == "stored"
    assert world.lease(1, 1)


def test_a_leased_chunk_that_went_stale_leaves_when_its_lease_ends(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.append("s", 0, 1)
    world.append("s", 1, 1)
    world.lease(1, 1, order="least_used")
    world.lease(2, 1, order="least_used")
    world.hear(9)
    assert world.figure("leased_fragments") == 2
    world.ack(1)
    world.release(2)
    assert (world.figure("trained_fragments"), world.figure("expired_fragments")) == (1, 1)


def test_a_lease_too_far_ahead_is_refused_before_it_drops_anything(world: Any) -> None:
    world.append("s", 0, 1)
    with pytest.raises(RejectedError):
        world.lease(1, 1, use_version=100)
    assert world.figure("live_fragments") == 1


def test_chunks_of_an_abandoned_lineage_are_dropped_and_stay_out(make_world: Worlds) -> None:
    world = make_world(max_staleness=9)
    for number, version in enumerate((3, 4, 5)):
        world.append("s", number, version)
    world.append("t", 0, 3, newest=6)
    world.become(epoch=2, version=6, resumed=3, first=6)
    assert names(world.lease(1, 1)) == [("s", 0)]
    assert world.figure("expired_fragments") == 3
    world.crash()
    assert world.append("u", 0, 5) == "expired"
    assert world.append("u", 1, 6) == "stored"
    assert world.reserve(("v", 0), version=5) == [False]
    assert world.reserve(("v", 0), version=6) == [True]


# Bounds: R8.


def test_the_oldest_unleased_chunks_make_room(make_world: Worlds) -> None:
    world = make_world(max_chunks=2)
    world.append("s", 0)
    world.lease(1, 1)
    world.append("s", 1)
    world.append("s", 2)
    assert world.figure("evicted_fragments") == 1
    assert world.faults() == []
    world.release(1)
    assert names(world.lease(2, 2)) == [("s", 0), ("s", 2)]


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


def test_payload_bytes_are_bounded(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**20)
    for number in range(8):
        world.append("s", number, payload=bytes(2**17))
    assert world.figure("held_payload_bytes") <= 2**19
    assert world.figure("evicted_fragments") == 4
    with pytest.raises(RejectedError):
        world.append("s", 8, payload=bytes(2**20))


def test_a_growing_chunk_is_not_evicted_for_its_own_next_fragment(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2, max_chunks=1)
    world.append("s", 0)
    assert world.append("s", 1) == "stored"
    assert world.append("t", 0) == "stored"
    assert world.append("t", 1) == "stored"
    assert names(world.lease(1, 1)) == [("t", 0)]


# Corruption: R9.


def test_corrupt_bytes_are_quarantined_and_never_served(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2, max_reuse=2)
    world.append("s", 0)
    world.append("s", 1)
    spoil(world, 1)
    lent = world.lease(1, 1)
    assert payloads(world, lent) == [b"payload", None]
    assert payloads(world, world.replay.lent(world.learner, 1, [])) == [b"payload", None]
    assert (world.figure("corrupt_fragments"), world.figure("leased_fragments")) == (1, 1)
    world.crash()
    assert world.faults() == []
    assert world.lease(2, 1) == []
    world.ack(1)
    assert (world.figure("trained_fragments"), world.figure("held_chunks")) == (1, 0)


def test_the_rest_of_a_chunk_with_corrupt_bytes_counts_as_corrupt_when_it_was_never_used(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2)
    world.append("s", 0)
    world.append("s", 1)
    spoil(world, 0)
    payloads(world, world.lease(1, 1))
    world.release(1)
    assert (world.figure("corrupt_fragments"), world.figure("held_chunks")) == (2, 0)
    assert world.faults() == []


# Pacing.


def test_grants_count_what_is_held_and_what_is_granted(world: Any) -> None:
    # Room for 4: (max_staleness + 1) * fragments_per_iteration / max_reuse.
    assert world.reserve(*(("s", number) for number in range(6))) == [True] * 4 + [False] * 2
    world.append("s", 0)
    assert world.reserve(("s", 4)) == [False]
    world.append("x", 0)
    world.hear(9)
    assert world.reserve(("s", 4), version=9) == [True]


def test_weights_that_are_too_old_get_no_grant_and_lose_the_one_they_had(world: Any) -> None:
    world.reserve(("s", 0))
    world.hear(5)
    assert world.reserve(("s", 0), ("s", 1), version=3) == [False, False]
    assert world.figure("granted_chunks") == 0
    assert world.reserve(("s", 0), version=4) == [True]


def test_silent_streams_lose_their_grants_and_their_incomplete_chunks(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2)
    world.reserve(("s", 0), ("t", 0))
    world.append("t", 0)
    world.clock.now_s += 61
    world.replay.tick()
    assert (world.figure("granted_chunks"), world.figure("held_chunks")) == (0, 0)
    assert world.figure("expired_fragments") == 1
    assert world.faults() == []


def test_a_stream_keeps_its_incomplete_chunk_by_asking_again_also_after_a_restart(make_world: Worlds) -> None:
    world = make_world(fragments_per_chunk=2)
    world.append("t", 0)
    for _ in range(3):
        world.clock.now_s += 50
        assert world.reserve(("t", 0)) == [True]
        world.restart()
        world.replay.tick()
    assert world.append("t", 1) == "stored"
    assert world.lease(1, 1)


# The ledger: R10.


def test_every_departure_is_explained(world: Any) -> None:
    world.append("s", 0, 1)
    world.lease(1, 1)
    world.ack(1)
    world.append("s", 1, 1)
    world.hear(9)
    world.append("s", 2, 1)
    rows = [row for _, row in world.replay.keeper.store.scan("drops")]
    assert [b'"reason": "trained"' in rows[0], b'"reason": "stale"' in rows[1], b'"stale"' in rows[2]] == [True] * 3


def test_a_tick_notes_what_is_synced_and_a_store_that_lost_it_is_refused(world: Any) -> None:
    world.append("s", 0)
    world.replay.tick()
    assert read_identity(world.directory) == Identity(run_id="run-1", appended=1)
    world.replay.close()
    write_identity(world.directory, Identity(run_id="run-1", appended=2))
    with pytest.raises(CorruptError):
        world.open()
    write_identity(world.directory, Identity(run_id="run-1", appended=1))
    world.replay = world.open()
