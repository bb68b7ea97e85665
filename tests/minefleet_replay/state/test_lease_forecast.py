"""When leases are expected to close, and what they wait for."""

import math
from typing import Any

import pytest

from minefleet_replay.engine.chunk_grants_to_actors import Grant
from minefleet_replay.state.chunk import NO_LOCATION, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_forecast import (
    EARLY,
    MAX_PATIENCE,
    MIN_PATIENCE,
    SLACK,
    WAYS_S,
    ForecastRow,
    LeaseClock,
    needed_s,
)
from minefleet_replay.state.step_fates_by_task import RECENT
from minefleet_replay.state.stream_pace import FASTER_RATIO, LATE_RATIO, RETRY_STREAM_S

CLOSING = ForecastRow(
    use_version=1, closes_in_s=(1.0, 1.0), at_most_in_s=1.0, waits_s=0.1, interval_s=1.0, window_s=1.0, longest_s=1.0
)


def answers(clock: LeaseClock, fills: list[float], waits: float = 0.0) -> float:
    """Answers a lease after each of these times, and publishes its version at once; returns when the last one was."""
    now = 0.0
    clock.published(0, now)
    clock.answered(0, now)
    for version, fill_s in enumerate(fills, 1):
        clock.published(version, now)
        clock.enough(now + fill_s)
        now += fill_s + waits
        clock.answered(version, now)
    return now


def test_a_lease_is_expected_to_close_as_late_after_the_last_one_as_those_before_it() -> None:
    clock = LeaseClock(max_staleness=1)
    assert clock.forecast(0.0) is None
    now = answers(clock, [1.0, 1.0, 5.0, 1.0])
    closing = clock.forecast(now)
    assert closing is not None
    assert (closing.use_version, closing.interval_s) == (5, 1.0)
    assert closing.closes_in_s == pytest.approx((EARLY, 2 - (1 - EARLY)))
    assert closing.waits_s == pytest.approx(1 - EARLY + MIN_PATIENCE)
    assert closing.at_most_in_s == pytest.approx(1 + MIN_PATIENCE)
    later = clock.forecast(now + 0.5)
    assert later is not None and later.closes_in_s[0] == pytest.approx(EARLY - 0.5)
    over = clock.forecast(now + 9)
    assert over is not None and (over.closes_in_s, over.at_most_in_s) == ((0, 0), 0)


def test_irregular_leases_are_expected_to_close_as_soon_as_one_in_four_does() -> None:
    clock = LeaseClock(max_staleness=1)
    now = answers(clock, [0.0, 2.0] * 4)
    closing = clock.forecast(now)
    assert closing is not None and closing.interval_s == 1.0
    assert closing.closes_in_s == pytest.approx((0.0, 2.0 - (1 - EARLY)))


def test_forecast_window_is_the_shortest_from_a_version_to_the_last_lease_that_may_hold_it() -> None:
    clock = LeaseClock(max_staleness=1)
    now = answers(clock, [2.0, 1.0, 3.0])
    closing = clock.forecast(now)
    assert closing is not None
    assert closing.window_s == 2.0
    assert closing.longest_s == pytest.approx(2.0 + MIN_PATIENCE * 2.0)


def test_forecast_window_does_not_begin_with_a_lease_that_was_never_answered() -> None:
    clock = LeaseClock(max_staleness=0)
    now = answers(clock, [2.0, 1.0, 3.0])
    clock.enough(now + 1.0)
    clock.taken_over()
    clock.published(5, now + 30.0)
    clock.enough(now + 31.0)
    clock.answered(5, now + 31.0)
    now += 31.0
    for version in (6, 7, 8):
        clock.published(version, now)
        clock.enough(now := now + 2.0)
        clock.answered(version, now)
    closing = clock.forecast(now)
    assert closing is not None and closing.window_s == 1.0


def test_forecast_does_not_take_waits_for_slow_streams_for_the_pace_of_the_run() -> None:
    clock = LeaseClock(max_staleness=1)
    now = answers(clock, [1.0] * 4, waits=0.7)
    closing = clock.forecast(now)
    assert closing is not None and closing.interval_s == pytest.approx(1.0)


@pytest.mark.parametrize(("slow", "patience"), [(0, MIN_PATIENCE), (1, 0.12), (45, MAX_PATIENCE), (100, MAX_PATIENCE)])
def test_lease_call_waits_for_its_chunks_the_longer_the_more_streams_are_slow(slow: int, patience: float) -> None:
    clock = LeaseClock(max_staleness=0)
    clock.be_patient(slow, 100)
    now = answers(clock, [1.0] * 4)
    closing = clock.forecast(now)
    assert closing is not None and closing.at_most_in_s == pytest.approx(1 + patience)


def iterate(world: Any, iterations: int, interval_s: float = 1.0) -> None:
    """Lets a fast stream fill so many leases, and the learner publish after each of them."""
    world.say("fast", 0, step_s=0.001)
    for _ in range(iterations):
        version = world.learner.version
        for _ in range(2):
            world.append("fast", world.figure("appended_fragments"), version)
        world.clock.now_s += interval_s
        assert world.lease(version, 2)
        world.ack(version)
        world.hear(version + 1)


def test_lease_call_waits_for_a_chunk_too_stale_for_the_next_one_but_not_for_ever(make_world: Any) -> None:
    for comes in (True, False):
        world = make_world(max_staleness=1, least_steps=8, chunk_steps=64)
        iterate(world, 4)
        version = world.learner.version
        world.say("slow", 0, oldest=version - 1, step_s=0.13)
        for _ in range(2):
            world.append("fast", world.figure("appended_fragments"), version)
        world.clock.now_s += 1.0
        assert world.lease(version, 2) == []
        world.clock.now_s += 0.04
        if comes:
            world.append("slow", 0, version - 1, steps=8)
        else:
            assert world.lease(version, 2) == []
            world.clock.now_s += 0.1
        assert ("slow" in {stream for stream, _ in world.names(world.lease(version, 2))}) == comes
        assert world.lease(version, 2)


def test_lease_call_does_not_wait_for_a_chunk_that_cannot_come_in_time(make_world: Any) -> None:
    world = make_world(max_staleness=0, least_steps=8)
    iterate(world, 4)
    version = world.learner.version
    world.say("slow", 0, oldest=version, step_s=9.0)
    for _ in range(2):
        world.append("fast", world.figure("appended_fragments"), version)
    world.clock.now_s += 1.0
    assert world.lease(version, 2)


def test_permit_of_a_stream_that_is_too_slow_is_refused_and_may_be_tried_again_later(make_world: Any) -> None:
    world = make_world(max_staleness=0, least_steps=8, chunk_steps=32, steps_per_iteration=64)
    for name in ("slow", "fast"):
        world.say(name, 0, step_s=1.0 if name == "slow" else 0.01)
    assert world.replay.reserve(1, [ChunkName("slow", 0)]).grants == [Grant(granted=True)]
    iterate(world, 4)
    world.say("slow", 1, step_s=1.0)

    def ask(stream: str, chunk: int) -> Any:
        (grant,) = world.replay.reserve(world.learner.version, [ChunkName(stream, chunk)]).grants
        return grant

    assert ask("slow", 1).granted
    for chunk in range(2):
        world.replay.transactions.pacing.revoke(ChunkName("slow", chunk))
    refused = ask("slow", 1)
    assert (refused.granted, refused.too_slow) == (False, True)
    assert ask("fast", 9).granted
    world.clock.now_s += RETRY_STREAM_S
    assert ask("slow", 1).granted


def test_permit_of_a_stream_with_hardly_time_is_refused_while_most_of_its_fragments_are_lost(make_world: Any) -> None:
    world = make_world(max_staleness=0, least_steps=8, chunk_steps=32, steps_per_iteration=64)
    for name, step_s in (("slow", 0.1), ("fast", 0.01)):
        world.say(name, 0, step_s=step_s)
    iterate(world, 4)
    transactions = world.replay.transactions
    closing = transactions.lease_clock.forecast(world.clock())
    step_s = closing.longest_s / 8 / 1.1
    assert needed_s(8, step_s) > closing.longest_s > 8 * step_s
    world.say("slow", 1, step_s=step_s)
    lost = FragmentEntry(0, 0, 1, 1, 1, 8, 0, 0, True, NO_LOCATION, "")

    def ask() -> Any:
        transactions.pacing.revoke(ChunkName("slow", 1))
        (grant,) = world.replay.reserve(world.learner.version, [ChunkName("slow", 1)]).grants
        return grant

    for _ in range(RECENT):
        assert ask().granted and not transactions.streams.too_slow
        transactions.shares.count("slow", [lost], "stale")
    assert ask().granted and transactions.streams.too_slow == {"slow": needed_s(8, step_s)}
    assert ask().too_slow
    for _ in range(2):
        world.clock.now_s += RETRY_STREAM_S
        world.say("slow", 1, step_s=step_s)
        assert ask().granted
        transactions.shares.count("slow", [lost], "trained")
    assert ask().granted and not transactions.streams.too_slow


def test_chunk_that_is_begun_anew_is_dated_anew(make_world: Any) -> None:
    world = make_world(max_staleness=9, chunk_steps=32)
    streams, name = world.replay.transactions.streams, ChunkName("slow", 7)
    world.say("slow", 7, step_s=0.1, oldest=1)
    began_at = world.clock()
    world.clock.now_s += 5.0
    world.say("slow", 7, step_s=0.1, oldest=1)
    assert streams.began_at(name, world.clock()) == began_at
    world.say("slow", 7, step_s=0.1, oldest=3)
    assert streams.began_at(name, world.clock()) == began_at + 5.0
    assert [*streams.begun_by(1)] == [] and len([*streams.begun_by(3)]) == 1


def test_lease_takes_the_chunk_that_was_begun_first_before_those_that_arrived_first(make_world: Any) -> None:
    world = make_world(max_staleness=0, least_steps=8)
    version = world.learner.version
    world.say("slow", 0, oldest=version, step_s=0.1)
    world.clock.now_s += 1.0
    for number in range(2):
        world.append("fast", number, version)
    world.append("slow", 0, version)
    assert {stream for stream, _ in world.names(world.lease(1, 1))} == {"slow"}


def test_longest_chunk_follows_from_the_window_and_the_clearly_faster_streams(make_world: Any) -> None:
    world = make_world(max_staleness=1, chunk_steps=32, steps_per_iteration=1000)
    streams, closing = world.replay.transactions.streams, CLOSING._replace(window_s=4.0, interval_s=2.0)
    assert streams.longest_chunk_s(None) == streams.longest_chunk_s(closing) == math.inf
    for name in "abc":
        world.say(name, 0, step_s=0.1)
    assert streams.longest_chunk_s(closing) == pytest.approx(32 * 0.1 / FASTER_RATIO)
    for name in "def":
        world.say(name, 0, step_s=0.01)
    left_s = 4.0 * (300 + 30) / 300 - 2.0 - WAYS_S
    assert streams.longest_chunk_s(closing) == pytest.approx(left_s / SLACK)
    assert streams.longest_chunk_s(CLOSING._replace(window_s=40.0, interval_s=2.0)) > 32 * 0.1


def test_longest_chunk_is_the_window_where_the_learner_sets_the_pace(make_world: Any) -> None:
    world = make_world(max_staleness=1, chunk_steps=32, steps_per_iteration=100)
    streams, closing = world.replay.transactions.streams, CLOSING._replace(window_s=8.0, interval_s=4.0)
    world.say("slow", 0, step_s=0.2)
    world.say("fast", 0, step_s=0.02)
    assert streams.longest_chunk_s(closing) == pytest.approx((8.0 - 4.0 - WAYS_S) / SLACK)
    world.say("fast", 0, step_s=0.1)
    assert streams.longest_chunk_s(closing) == pytest.approx((8.0 * 1.5 - 4.0 - WAYS_S) / SLACK)


def test_a_stream_that_turns_out_to_be_slow_or_late_leaves_its_room_to_others(make_world: Any) -> None:
    world = make_world(max_staleness=0, least_steps=8, chunk_steps=32, steps_per_iteration=64)
    assert world.reserve(("slow", 0), ("late", 0)) == [True, True]
    assert world.figure("coming_steps") == 64
    for name, step_s in (("fast", 0.001), ("slow", 0.004)):
        world.say(name, 0, step_s=step_s)
    assert world.reserve(("slow", 0)) == [True]
    assert world.figure("coming_steps") == 32 + 10
    late_s = world.replay.transactions.streams.late_s(None)
    assert late_s == pytest.approx(LATE_RATIO * 32 * 0.001 / FASTER_RATIO)
    for passed_s, coming_steps in ((0.9 * late_s, 32 + 10), (0.2 * late_s, 0)):
        world.clock.now_s += passed_s
        world.replay.tick()
        assert world.figure("coming_steps") == coming_steps
    assert world.reserve(("slow", 0), ("late", 0), ("fast", 0)) == [True, True, True]
    assert world.figure("coming_steps") == 32


def test_permit_takes_no_more_room_than_its_stream_can_fill_in_time(make_world: Any) -> None:
    world = make_world(max_staleness=0, least_steps=8, chunk_steps=32, steps_per_iteration=64)
    iterate(world, 6)
    before = world.figure("coming_steps")
    world.say("slow", 0, step_s=0.08)
    world.reserve(("slow", 0), version=world.learner.version)
    assert world.figure("coming_steps") - before == 12
    world.say("fast", 99, step_s=0.001)
    world.reserve(("fast", 99), version=world.learner.version)
    assert world.figure("coming_steps") - before == 12 + 32
