"""Guarantees for actors, on a real store without a network. `make_world` is in conftest."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minefleet.core.errors import ConflictError, ContractError, RejectedError, RunMismatchError
from minefleet_replay.state.actor_step_totals import ActorCounts

Worlds = Callable[..., Any]


def test_appended_fragments_survive_a_crash_of_replay(world: Any) -> None:
    world.append("s", 0, payload=b"first")
    world.report(("s", 0), actor="a", progress=ActorCounts(10, 1))
    world.crash()
    assert world.payloads(world.lease(1, 1)) == [b"first"]
    assert world.replay.read_episodes(world.learner, 0, 9)[0][0].stream == "s"
    assert world.replay.progress() == ActorCounts(10, 1)


def test_every_so_many_appended_fragments_the_ledger_is_logged(
    make_world: Worlds, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "minefleet_replay.engine.append")
    world = make_world(steps_per_report=2)
    for sequence in (0, 1, 1, 2, 3):
        world.append("s", sequence)
    assert ["appended=2" in record.getMessage() for record in caplog.records] == [True, False]


def test_append_with_host_durability_is_synced_before_it_is_acked_also_when_repeated(make_world: Worlds) -> None:
    world = make_world(syncs_appends=True)
    store = world.replay.transactions.store
    world.append("s", 0)
    assert store.synced == store.written
    change = world.replay.transactions.change()
    world.replay.transactions.commit(change)
    assert world.append("s", 0) == "duplicate"
    assert store.synced == store.written


def test_append_of_a_stored_name_is_a_duplicate_and_stores_nothing(world: Any) -> None:
    assert [world.append("s", 0), world.append("s", 0)] == ["stored", "duplicate"]
    world.crash()
    assert world.append("s", 0) == "duplicate"
    assert world.figure("appended_fragments") == 1


def test_append_of_a_stored_name_with_other_bytes_is_a_conflict(world: Any) -> None:
    world.append("s", 0)
    with pytest.raises(ConflictError):
        world.append("s", 0, payload=b"other")
    assert world.payloads(world.lease(1, 1)) == [b"payload"]


def test_append_of_a_name_whose_fragment_has_left_is_a_duplicate(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1)
    world.ack(1)
    world.crash()
    assert world.append("s", 0) == "duplicate"
    with pytest.raises(ConflictError):
        world.append("s", 0, payload=b"other")


def test_append_after_the_fragment_that_closes_a_chunk_is_rejected(make_world: Worlds) -> None:
    world = make_world(per_chunk=4)
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


def test_actor_progress_is_the_sum_of_maxima_and_never_goes_back(world: Any) -> None:
    world.report(actor="a", progress=ActorCounts(10, 1))
    world.report(actor="b", progress=ActorCounts(5, 0))
    world.report(actor="a", progress=ActorCounts(7, 2))
    assert world.replay.progress() == ActorCounts(15, 2)
    world.crash()
    assert world.replay.progress() == ActorCounts(15, 2)


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


def test_a_store_is_not_opened_with_another_schema(make_world: Worlds) -> None:
    world = make_world(per_chunk=2, schema_fingerprint="abc")
    world.replay.close()
    fitting = world.limits
    world.limits = replace(fitting, schema_fingerprint="x")
    with pytest.raises(ContractError):
        world.open()
    world.limits = fitting
    world.replay = world.open()


def test_reserve_counts_held_and_granted_chunks_against_the_room(world: Any) -> None:
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


def test_stream_that_is_silent_loses_its_grants_and_incomplete_chunks(make_world: Worlds) -> None:
    world = make_world(per_chunk=2)
    world.reserve(("s", 0), ("t", 0))
    world.append("t", 0)
    world.clock.now_s += 61
    world.replay.tick()
    assert (world.figure("granted_chunks"), world.figure("held_chunks")) == (0, 0)
    assert world.figure("expired_fragments") == 1
    assert world.faults() == []


def test_a_stream_keeps_its_incomplete_chunk_by_asking_again_also_after_a_restart(make_world: Worlds) -> None:
    world = make_world(per_chunk=2)
    world.append("t", 0)
    for _ in range(3):
        world.clock.now_s += 50
        assert world.reserve(("t", 0)) == [True]
        world.restart()
        world.replay.tick()
    assert world.append("t", 1) == "stored"
    assert world.lease(1, 1)


def test_weights_that_are_behind_get_only_room_that_leaves_their_chunk_fresh(world: Any) -> None:
    world.hear(2)
    world.append("s", 0, 2)
    assert world.reserve(*(("t", number) for number in range(4)), version=1) == [True, False, False, False]
    assert world.reserve(*(("u", number) for number in range(4)), version=2) == [True, True, False, False]


def test_refused_permit_says_whether_newer_weights_would_be_granted(world: Any) -> None:
    world.hear(2)
    world.append("s", 0, 2)

    def wants_newer(version: int) -> bool:
        return bool(world.replay.reserve(version, []).wants_newer_weights)

    assert [wants_newer(version) for version in (0, 1, 2)] == [True, False, False]
    world.reserve(("t", 0), version=1)
    assert [wants_newer(version) for version in (0, 1, 2)] == [True, True, False]
    world.reserve(("t", 1), ("t", 2), version=2)
    assert [wants_newer(version) for version in (0, 1, 2)] == [False, False, False]
