"""Where streams go, and what a refused slot finds out about other shards."""

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from minefleet_actor.grants import POLL_S, RECENT_S, Grants
from minefleet_actor.lanes import Lane, Lanes, lane_number, stream_name


class Replay:
    """Answers a Reserve with what is free, and takes it."""

    def __init__(self, free_chunks: int = 0) -> None:
        self.free_chunks = free_chunks
        self.asked: list[list[tuple[str, int]]] = []

    newest_version = 1
    wants_newer_weights = False

    def reserve(self, policy_version: int, chunks: list[tuple[str, int]], **told: object) -> Any:
        self.asked.append(chunks)
        granted = [number < self.free_chunks for number in range(len(chunks))]
        self.free_chunks -= sum(granted)
        return SimpleNamespace(
            granted=granted,
            retry_after_s=0.1,
            newest_version=self.newest_version,
            free_chunks=self.free_chunks,
            wants_newer_weights=self.wants_newer_weights,
        )


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def grants_of(replay: Any, clock: Clock) -> Grants:
    return Grants(replay, version=lambda: 1, granted=lambda: None, renew_s=20.0, max_staleness=1, clock=clock)


def lanes_of(replays: list[Replay], slots: int, clock: Clock, shipper: Any = None) -> Lanes:
    lanes = [Lane(name="", grants=grants_of(replay, clock), shipper=shipper) for replay in replays]
    return Lanes("actor", slots, lanes, fragments_per_chunk=2)


def poll(lanes: Lanes, clock: Clock, times: int = 2) -> bool:
    """Looks around as often as a loop would, a second apart."""
    for _ in range(times):
        clock.now_s += POLL_S
        lanes.look_around()
        for lane in lanes:
            lane.grants.ask()
    return lanes.look_around()


@pytest.mark.parametrize("shards", range(1, 5))
@pytest.mark.parametrize("slots", [1, 4, 9])
def test_an_actors_slots_spread_over_all_shards(shards: int, slots: int) -> None:
    for actor in ("actor", "other", "third"):
        used = Counter(lane_number(actor, slot, 0, shards) for slot in range(slots))
        assert max(used.values()) - min(used.values()) <= (1 if slots >= shards else 0)
        assert len(used) == min(slots, shards)


def test_every_generation_of_a_slot_lies_on_the_next_shard() -> None:
    assert {(lane_number("actor", 2, g + 1, 3) - lane_number("actor", 2, g, 3)) % 3 for g in range(10)} == {1}


def test_the_first_stream_of_a_slot_has_the_plain_name() -> None:
    assert [stream_name("actor", 3, generation) for generation in range(3)] == ["actor-3", "actor-3.1", "actor-3.2"]


def test_a_refused_slot_goes_to_the_shard_with_room(clock: Clock) -> None:
    replays = [Replay() for _ in range(3)]
    lanes = lanes_of(replays, 1, clock)
    own = int(lanes.numbers[0])
    target = (own + 2) % 3
    replays[target].free_chunks = 1
    lanes.wish(0, 0)
    assert poll(lanes, clock)
    assert lanes.move(0, 0)
    assert lanes.numbers[0] == target == lane_number("actor", 0, 2, 3)
    assert lanes.stream(0) == "actor-0.2"
    assert not lanes.look_around()  # The chunk is spoken for.


def test_a_slot_stays_while_no_other_shard_has_room(clock: Clock) -> None:
    lanes = lanes_of([Replay(), Replay()], 1, clock)
    lanes.wish(0, 0)
    assert not poll(lanes, clock)
    assert not lanes.move(0, 0)
    assert lanes.stream(0) == "actor-0"


def test_what_is_free_for_a_moment_only_is_not_spare(clock: Clock) -> None:
    replays = [Replay(), Replay()]
    lanes = lanes_of(replays, 1, clock)
    replays[1 - lanes.numbers[0]].free_chunks = 1
    assert not poll(lanes, clock, times=1)
    replays[1 - lanes.numbers[0]].free_chunks = 0
    assert not poll(lanes, clock, times=1)


def test_what_was_heard_long_ago_does_not_count(clock: Clock) -> None:
    lanes = lanes_of([Replay(1), Replay(1)], 1, clock)
    assert poll(lanes, clock)
    clock.now_s += RECENT_S + 1
    assert not lanes.look_around()


def test_slots_do_not_crowd_one_shard(clock: Clock) -> None:
    replays = [Replay(), Replay()]
    lanes = lanes_of(replays, 4, clock)
    replays[0].free_chunks = 100
    own = [slot for slot in range(4) if lanes.numbers[slot] == 1]
    for slot in own:
        lanes.wish(slot, 0)
    poll(lanes, clock)
    assert [lanes.move(slot, 0) for slot in own] == [True, False]


def test_a_granted_chunk_is_not_given_up(clock: Clock) -> None:
    grants = grants_of(Replay(free_chunks=1), clock)
    grants.wish(("s", 0))
    grants.ask()
    assert not grants.withdraw(("s", 0))
    assert grants.may_make(("s", 0))


def test_a_wish_on_its_way_is_not_withdrawn(clock: Clock) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Slow(Replay):
        def reserve(self, policy_version: int, chunks: list[tuple[str, int]], **told: object) -> Any:
            asked.set()
            assert answer.wait(60.0)
            return super().reserve(policy_version, chunks)

    grants = grants_of(Slow(), clock)
    grants.wish(("s", 0))
    asking = threading.Thread(target=grants.ask)
    asking.start()
    assert asked.wait(60.0)
    assert not grants.withdraw(("s", 0))
    answer.set()
    asking.join()
    assert grants.withdraw(("s", 0))
    assert not grants.withdraw(("s", 0))


def test_room_is_asked_for_only_when_wanted_and_once_a_second(clock: Clock) -> None:
    replay = Replay()
    grants = grants_of(replay, clock)
    grants.ask()
    assert replay.asked == []
    for _ in range(3):
        grants.poll()
        grants.ask()
    assert replay.asked == [[]]
    clock.now_s += POLL_S
    grants.poll()
    grants.ask()
    assert replay.asked == [[], []]


@pytest.mark.parametrize(
    ("has_room", "newest_version", "wants_newer", "lack"),
    [(False, 9, False, "room"), (True, 2, False, "grant"), (True, 3, False, "weights"), (True, 2, True, "weights")],
)
def test_what_a_held_slot_waits_for_is_known(
    clock: Clock, has_room: bool, newest_version: int, wants_newer: bool, lack: str
) -> None:
    replay = Replay()
    replay.newest_version, replay.wants_newer_weights = newest_version, wants_newer
    lanes = lanes_of([replay], 1, clock, SimpleNamespace(has_room=lambda coming: has_room))
    lanes.wish(0, 0)
    for lane in lanes:
        lane.grants.ask()
    assert lanes.lack(0) == lack


def test_a_complete_fragment_that_is_not_sent_takes_its_room_already(clock: Clock) -> None:
    sent: list[Any] = []
    fragment: Any = None
    shipper = SimpleNamespace(has_room=lambda coming: len(sent) + coming < 2, send=sent.append)
    lanes = lanes_of([Replay(free_chunks=3)], 3, clock, shipper)
    for slot in range(3):
        lanes.wish(slot, 0)
    for lane in lanes:
        lane.grants.ask()
    assert lanes.may_start(0, 0, after_another=False)
    assert [lanes.may_start(slot, 1, after_another=True) for slot in range(3)] == [True, True, False]
    assert lanes.lack(2) == "room"
    lanes.send(0, 0, fragment, closes_stream=False)
    assert not lanes.may_start(2, 1, after_another=True)
    sent.clear()
    assert lanes.may_start(2, 1, after_another=True)


def test_newer_weights_end_the_wait_for_newer_weights(clock: Clock) -> None:
    replay, version = Replay(), [1]
    replay.wants_newer_weights = True
    grants: Any = Grants(
        replay,  # type: ignore[arg-type]
        version=lambda: version[0],
        granted=lambda: None,
        renew_s=20.0,
        max_staleness=1,
        clock=clock,
    )
    grants.wish(("s", 0))
    grants.ask()
    assert grants.is_behind
    version[0] = 2
    assert not grants.is_behind
