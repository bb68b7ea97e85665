"""Streams go to shards in turn, and a blocked slot waits for one reason."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minefleet.rpc.replay_types import LeaseForecast
from minefleet_actor.replay_io.permits import RolloutPermits
from minefleet_actor.replay_io.stream_router import ShardConnection, StreamRouter, shard_numbers


class Replay:
    """Answers a Reserve with what is free, and takes it."""

    def __init__(self, free_chunks: int = 0) -> None:
        self.free_chunks = free_chunks
        self.asked: list[list[tuple[str, int]]] = []
        self.told: list[list[tuple[str, int, float]]] = []
        self.returned: list[list[tuple[str, int]]] = []
        self.too_slow = False
        self.closing: LeaseForecast | None = None

    newest_version = 1
    wants_newer_weights = False

    def reserve(
        self, policy_version: int, chunks: list[tuple[str, int]], streams: Any, returned: list[tuple[str, int]]
    ) -> Any:
        self.asked.append(chunks)
        self.returned.append(returned)
        self.told.append([(state.stream, state.chunk, state.step_time.ToNanoseconds() / 1e9) for state in streams])
        granted = [number < self.free_chunks for number in range(len(chunks))]
        self.free_chunks -= sum(granted)
        return SimpleNamespace(
            granted=granted,
            retry_after_s=0.1,
            newest_version=self.newest_version,
            wants_newer_weights=self.wants_newer_weights,
            too_slow=[self.too_slow] * len(chunks),
            ahead=[False] * len(chunks),
            tasks=[],
            closing=self.closing,
            longest_chunk_s=7.0,
        )


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def permits_of(replay: Any, clock: Clock) -> RolloutPermits:
    return RolloutPermits(replay, version=lambda: 1, granted=lambda: None, renew_s=20.0, max_staleness=1, clock=clock)


def router_of(replays: list[Replay], slots: int, clock: Clock, uploader: Any = None) -> StreamRouter:
    shards = [ShardConnection(name="", permits=permits_of(replay, clock), uploader=uploader) for replay in replays]
    return StreamRouter("actor", slots, shards, fragments_per_chunk=2)


@pytest.mark.parametrize("shards", range(1, 5))
@pytest.mark.parametrize("slots", [1, 4, 9])
@pytest.mark.parametrize("actors", [1, 3])
def test_the_slots_of_a_fleet_spread_over_all_shards(actors: int, slots: int, shards: int) -> None:
    used = Counter(number for actor in range(actors) for number in shard_numbers(actor, slots, shards).tolist())
    assert len(used) == min(actors * slots, shards)
    assert max(used.values()) - min(used.values()) <= 1


def test_a_refused_slot_waits_for_its_own_shard_and_asks_no_other(clock: Clock) -> None:
    replays = [Replay(), Replay()]
    shards = router_of(replays, 1, clock, SimpleNamespace(has_room=lambda coming: True))
    own = int(shards.shard_of[0])
    replays[1 - own].free_chunks = 1
    shards.request(0)
    for _ in range(3):
        for lane in shards:
            lane.permits.reserve()
        assert not shards.may_start(0, after_another=False)
    assert (replays[own].asked, replays[1 - own].asked) == ([[("actor-0", 0)]] * 3, [])
    replays[own].free_chunks = 1
    for lane in shards:
        lane.permits.reserve()
    assert shards.may_start(0, after_another=False)
    assert (int(shards.shard_of[0]), shards.stream(0)) == (own, "actor-0")


@pytest.mark.parametrize(
    ("has_room", "newest_version", "wants_newer", "lack"),
    [(False, 9, False, "room"), (True, 2, False, "grant"), (True, 3, False, "weights"), (True, 2, True, "weights")],
)
def test_stream_router_names_what_a_blocked_slot_waits_for(
    clock: Clock, has_room: bool, newest_version: int, wants_newer: bool, lack: str
) -> None:
    replay = Replay()
    replay.newest_version, replay.wants_newer_weights = newest_version, wants_newer
    shards = router_of([replay], 1, clock, SimpleNamespace(has_room=lambda coming: has_room))
    shards.request(0)
    for lane in shards:
        lane.permits.reserve()
    assert shards.count_blocked(np.array([True])) == {lack: 1}


def test_a_complete_fragment_that_is_not_sent_takes_its_room_already(clock: Clock) -> None:
    sent: list[Any] = []
    fragment: Any = None
    uploader = SimpleNamespace(
        has_room=lambda coming: len(sent) + coming < 2, send=lambda header, _: sent.append(header)
    )
    shards = router_of([Replay(free_chunks=3)], 3, clock, uploader)
    for slot in range(3):
        shards.request(slot)
    for lane in shards:
        lane.permits.reserve()
    assert shards.may_start(0, after_another=False)
    assert [shards.may_start(slot, after_another=True) for slot in range(3)] == [True, True, False]
    assert shards.count_blocked(np.array([False, False, True])) == {"room": 1}
    shards.send(0, fragment, closes_chunk=False)
    assert not shards.may_start(2, after_another=True)
    sent.clear()
    assert shards.may_start(2, after_another=True)


def test_newer_weights_end_the_wait_for_newer_weights(clock: Clock) -> None:
    replay, version = Replay(), [1]
    replay.wants_newer_weights = True
    permits: Any = RolloutPermits(
        replay,  # type: ignore[arg-type]
        version=lambda: version[0],
        granted=lambda: None,
        renew_s=20.0,
        max_staleness=1,
        clock=clock,
    )
    permits.request(("s", 0))
    permits.reserve()
    assert permits.needs_newer_weights
    version[0] = 2
    assert not permits.needs_newer_weights


def test_permit_deadlines_follow_what_replay_forecasts(clock: Clock) -> None:
    replay = Replay(free_chunks=9)
    permits = permits_of(replay, clock)
    assert permits.deadline(1) == math.inf
    replay.closing = LeaseForecast(use_version=5, closes_in_s=[2.0, 11.0], waits_s=1.0, interval_s=10.0)
    permits.request(("s", 0))
    permits.reserve()
    now = clock.now_s
    assert permits.deadline(3) == -math.inf
    assert (permits.deadline(4), permits.deadline(4, at_most=True)) == (now + 2.0, now + 3.0)
    assert permits.deadline(5) == permits.deadline(6) == now + 11.0
    assert (permits.interval_s, permits.longest_chunk_s, permits.forecasts) == (10.0, 7.0, 1)


def test_replay_is_told_what_is_begun_and_when_its_pace_changes_and_asked_again_for_it(clock: Clock) -> None:
    replay = Replay(free_chunks=9)
    permits = permits_of(replay, clock)
    permits.request(("s", 0))
    permits.reserve()
    permits.begin(("s", 0), 1, 0.0)
    permits.reserve()
    assert (replay.told[-1], replay.asked[-1]) == ([("s", 0, 0.0)], [("s", 0)])
    permits.report_pace(("s", 0), 1.5, "a task")
    permits.reserve()
    assert replay.told[-1] == [("s", 0, 1.5)]
    permits.report_pace(("t", 3), 1.5)
    permits.reserve()
    assert replay.told[-1] == [("t", 3, 1.5)]
    permits.release(("s", 0))
    told = len(replay.told)
    permits.reserve()
    assert len(replay.told) == told


def test_a_chunk_that_is_not_made_for_a_while_is_given_back_until_it_is_asked_for_again(clock: Clock) -> None:
    replay = Replay(free_chunks=9)
    permits = permits_of(replay, clock)
    for number in range(3):
        permits.request(("s", number))
    permits.reserve()
    permits.request(("s", 3))
    permits.begin(("s", 0), 1, 0.0)
    for number in range(4):
        permits.give_back(("s", number))
    permits.give_back(("t", 0))
    permits.request(("s", 2))
    permits.reserve()
    assert (replay.asked[-1], replay.returned[-1]) == ([("s", 2), ("s", 0)], [("s", 1), ("s", 3)])
    assert [permits.is_granted(("s", number)) for number in range(4)] == [True, False, True, False]
    permits.request(("s", 1))
    permits.reserve()
    assert (replay.asked[-1], replay.returned[-1]) == ([("s", 1)], [])


def test_permits_call_a_stream_too_slow_until_replay_says_otherwise(clock: Clock) -> None:
    replay = Replay()
    replay.too_slow = True
    permits = permits_of(replay, clock)
    permits.request(("s", 0))
    permits.reserve()
    assert permits.verdict("s").too_slow
    replay.too_slow = False
    permits.reserve()
    assert not permits.verdict("s").too_slow


def test_a_chunk_that_is_cut_early_is_followed_by_the_next_one(clock: Clock) -> None:
    sent: list[Any] = []
    fragment: Any = None
    uploader = SimpleNamespace(has_room=lambda coming: True, send=lambda header, _: sent.append(header))
    replay = Replay(free_chunks=1)
    shards = router_of([replay], 1, clock, uploader)
    shards.request(0)
    for lane in shards:
        lane.permits.reserve()
    assert shards.may_start(0, after_another=True)
    assert not shards.may_start(0, after_another=True, closes_chunk=True)
    replay.free_chunks = 1
    for lane in shards:
        lane.permits.reserve()
    assert shards.may_start(0, after_another=True, closes_chunk=True)
    shards.send(0, fragment, closes_chunk=True)
    shards.send(0, fragment, closes_chunk=False)
    shards.send(0, fragment, closes_chunk=False)
    assert [(one.chunk, one.chunk_start, one.closes_chunk) for one in sent] == [
        (0, 0, True),
        (1, 1, False),
        (1, 1, True),
    ]
