"""Guarantees for the learner, on a real store without a network. `make_world` is in conftest."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from minefleet.core.errors import ConfigError, FencedError, NotFoundError, OverloadedError, RejectedError
from minefleet_replay.engine.lease import LeaseRequest
from minefleet_replay.state.lease_table import CLOSED_KEPT, MAX_OPEN

Worlds = Callable[..., Any]


def test_a_use_is_charged_before_the_lease_is_answered_and_survives_a_crash(world: Any) -> None:
    world.append("s", 0)
    lent = world.lease(1, 1)
    world.crash()
    assert world.lease(2, 1) == []
    assert world.names(world.lease(1, 1)) == world.names(lent)


def test_leasing_again_by_the_same_number_charges_nothing(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.append("s", 0)
    assert world.names(world.lease(1, 1)) == world.names(world.lease(1, 1))
    assert world.names(world.lease(2, 1)) == [("s", 0)]
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


def test_a_lower_max_reuse_drops_what_was_used_as_often_and_leaves_open_leases_alone(make_world: Worlds) -> None:
    world = make_world(max_reuse=3)
    for sequence in range(3):
        world.append("s", sequence)
    world.lease(1, 3)
    world.ack(1)
    world.lease(2, 1)
    world.lease(3, 3)
    assert world.lease(4, 1, max_reuse=1) == []
    assert world.figure("trained_fragments") == 0
    world.ack(3)
    world.release(2)
    assert (world.figure("trained_fragments"), world.figure("held_chunks"), world.faults()) == (3, 0, [])


def test_a_lower_max_reuse_drops_unleased_chunks_at_once(make_world: Worlds) -> None:
    world = make_world(max_reuse=3)
    world.append("s", 0)
    world.lease(1, 1)
    world.ack(1)
    assert world.lease(2, 1, max_reuse=1) == []
    assert (world.figure("trained_fragments"), world.figure("held_chunks"), world.faults()) == (1, 0, [])


def test_a_higher_max_reuse_lets_held_chunks_be_leased_again(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.append("s", 0)
    assert world.lease(1, 1) and world.lease(2, 1)
    assert world.lease(3, 1) == []
    assert world.names(world.lease(3, 1, max_reuse=3)) == [("s", 0)]


def test_a_lower_max_staleness_drops_what_is_too_stale_for_it(make_world: Worlds) -> None:
    world = make_world(max_staleness=3)
    world.hear(3)
    world.append("old", 0, 2)
    world.append("new", 0, 3)
    assert world.names(world.lease(1, 1, 3, max_staleness=0)) == [("new", 0)]
    assert (world.figure("expired_fragments"), world.figure("held_chunks"), world.faults()) == (1, 1, [])


def test_a_higher_max_staleness_does_not_bring_back_what_was_too_stale(make_world: Worlds) -> None:
    world = make_world(max_staleness=1)
    world.hear(5)
    world.lease(1, 1, max_staleness=4)
    assert [world.append("s", version, version) for version in (3, 4)] == ["expired", "stored"]
    world.crash()
    assert world.append("t", 0, 3) == "expired"


def test_limits_of_the_last_lease_survive_a_crash_and_go_with_the_next_lease(make_world: Worlds) -> None:
    world = make_world(max_reuse=1)
    world.append("s", 0)
    world.lease(1, 1, max_reuse=2)
    world.crash()
    world.ack(1)
    assert world.figure("held_chunks") == 1
    assert world.lease(2, 1) == []
    assert world.figure("held_chunks") == 0


def test_an_open_lease_is_answered_again_whatever_limits_are_asked_for(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.append("s", 0)
    lent = world.names(world.lease(1, 1))
    assert world.names(world.lease(1, 1, max_reuse=1)) == lent
    world.ack(1)
    assert world.figure("held_chunks") == 1


def test_settings_that_are_none_are_refused_and_change_nothing(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)

    def refuse(settings: str) -> Any:
        raise ConfigError(settings)

    world.append("s", 0)
    world.replay.transactions.state.limits = replace(world.limits, follow=refuse)
    with pytest.raises(RejectedError, match="settings of lease 1"):
        world.lease(1, 1, max_reuse=0)
    assert world.replay.transactions.state.limits.max_reuse == 2
    assert world.figure("open_leases") == 0


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


def test_lease_beyond_the_most_open_ones_is_refused(world: Any) -> None:
    for number in range(MAX_OPEN + 1):
        world.append("s", number)
    for number in range(MAX_OPEN):
        assert world.lease(number, 1)
    with pytest.raises(OverloadedError):
        world.lease(MAX_OPEN, 1)


def test_lease_that_is_closed_is_forgotten_in_the_end(make_world: Worlds) -> None:
    world = make_world(max_reuse=2 * CLOSED_KEPT)
    world.append("s", 0)
    for number in range(CLOSED_KEPT + 2):
        world.lease(number, 1)
        world.ack(number)
    assert len(list(world.replay.transactions.store.scan("leases"))) == CLOSED_KEPT
    world.ack(2)
    with pytest.raises(NotFoundError):
        world.ack(1)


def test_a_newer_epoch_gets_the_unacked_leases_back_and_fences_the_older_everywhere(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1)
    older = world.learner
    world.become(epoch=2, version=2, resumed=1, first=2)
    world.crash()
    assert world.names(world.lease(1, 1)) == [("s", 0)]
    world.learner = older
    with pytest.raises(FencedError):
        world.ack(1)
    with pytest.raises(FencedError):
        world.lease(1, 1)
    with pytest.raises(FencedError):
        world.replay.chunks_in_lease(older, 1, [])
    with pytest.raises(FencedError):
        world.replay.read_episodes(older, 0, 1)


def test_a_newer_epoch_trains_on_its_versions_though_an_older_one_leased_for_later_ones(make_world: Worlds) -> None:
    """The older one may have leased far ahead, since `max_staleness` was larger then."""
    world = make_world(max_staleness=0)
    world.lease(1, 1, use_version=4, max_staleness=3)
    world.become(epoch=2, version=2, resumed=1, first=2)
    assert world.lease(1, 1, max_staleness=0) == []
    assert world.reserve(("s", 0), version=2) == [True]
    assert world.append("s", 0, version=2) == "stored"
    assert world.names(world.lease(2, 1)) == [("s", 0)]


def test_learner_of_an_older_epoch_is_fenced_and_changes_nothing(world: Any) -> None:
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
    assert world.names(lent) == [("s", 0), ("s", 1)]


def test_a_lease_that_runs_out_of_time_charges_nothing(world: Any) -> None:
    world.append("s", 0)
    assert world.lease(1, 2, wait_s=0.01) == []
    assert world.figure("open_leases") == 0
    assert world.names(world.lease(1, 1)) == [("s", 0)]


def test_a_lease_is_not_charged_for_a_caller_that_went_away(world: Any) -> None:
    gone, lent = threading.Event(), list[Any]()
    wanted = LeaseRequest(number=1, steps=1, use_version=1)

    def wait() -> None:
        lent.extend(world.replay.lease(world.learner, wanted, 600.0, lambda: not gone.is_set()))

    waiting = threading.Thread(target=wait)
    waiting.start()
    gone.set()
    world.replay.wake()
    waiting.join()
    world.append("s", 0)
    assert lent == []
    assert world.figure("open_leases") == 0


def test_lease_wait_ends_when_replay_drains(world: Any) -> None:
    waiting = threading.Thread(target=lambda: world.lease(1, 2, wait_s=600))
    waiting.start()
    world.replay.stop_waiting()
    waiting.join()


def test_a_short_chunk_is_leased_with_another_until_their_steps_are_enough(make_world: Worlds) -> None:
    world = make_world(per_chunk=2)
    world.append("s", 0, closes=True)
    world.append("t", 0)
    world.append("t", 1)
    assert [len(chunk.fragments) for chunk in world.lease(1, 1)] == [1, 2]
    assert world.lease(2, 1) == []


def test_read_of_an_open_lease_can_be_repeated(world: Any) -> None:
    world.append("s", 0)
    world.append("s", 1)
    lent = world.lease(1, 2)
    assert (
        world.payloads(lent) == world.payloads(world.replay.chunks_in_lease(world.learner, 1, [])) == [b"payload"] * 2
    )
    assert world.names(world.replay.chunks_in_lease(world.learner, 1, [lent[1].name])) == [("s", 1)]
    world.ack(1)
    with pytest.raises(NotFoundError):
        world.replay.chunks_in_lease(world.learner, 1, [])
    with pytest.raises(NotFoundError):
        world.payloads(lent)


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


def test_lease_leaves_out_chunks_that_would_be_too_stale_when_used(make_world: Worlds) -> None:
    world = make_world(max_reuse=2)
    world.hear(5)
    world.append("s", 0, 4)
    world.append("s", 1, 5)
    world.lease(1, 2, use_version=5)
    assert world.names(world.lease(2, 1, use_version=6)) == [("s", 1)]
    assert world.lease(3, 1, use_version=6) == []


def test_a_chunk_is_as_stale_as_its_oldest_step(make_world: Worlds) -> None:
    world = make_world(per_chunk=2)
    world.hear(3)
    world.append("s", 0, 2, newest=3)
    world.append("s", 1, 3)
    world.hear(4)
    assert (world.figure("expired_fragments"), world.figure("held_chunks")) == (2, 0)


def test_the_rest_of_a_dropped_chunk_is_dropped_as_it_comes(make_world: Worlds) -> None:
    world = make_world(per_chunk=2)
    world.hear(3)
    assert world.append("s", 0, 1) == "expired"
    assert world.append("s", 1, 3) == "expired"
    assert world.append("t", 0, 3) == "stored"
    assert world.append("t", 1, 1) == "expired"
    assert (world.figure("expired_fragments"), world.figure("held_chunks")) == (4, 0)


def test_append_of_a_version_newer_than_replay_knows_is_stored_and_leased(world: Any) -> None:
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
    assert world.names(world.lease(1, 1)) == [("s", 0)]
    assert world.figure("expired_fragments") == 3
    world.crash()
    assert world.append("u", 0, 5) == "expired"
    assert world.append("u", 1, 6) == "stored"
    assert world.reserve(("v", 0), version=5) == [False]
    assert world.reserve(("v", 0), version=6) == [True]
