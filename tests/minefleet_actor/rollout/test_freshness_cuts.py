"""When fragments end before they are full, and when they may start."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minefleet_actor.replay_io.permits import StreamVerdict
from minefleet_actor.replay_io.stream_router import ChunkForecast
from minefleet_actor.rollout.freshness_cuts import (
    BALANCE,
    HICCUP_RATIO,
    MARGIN_S,
    PACE,
    PATIENCE_ITERATIONS,
    REPORT_INTERVAL_S,
    STEP_TIME_SLACK,
    STUCK_RATIO,
    FreshnessCuts,
)

LEAST, FULL = 4, 20
STEP_S = 0.5
TASK = "a task"


class Forecasts:
    """Replay's forecasts, as the test sets them."""

    def __init__(self) -> None:
        self.forecasts = 0
        self.at = math.inf
        self.left = math.inf
        self.interval = 3.0
        self.too_slow = self.ahead = False
        self.longest = 1.0
        self.reported = list[float]()

    def forecast(self, slot: int) -> ChunkForecast:
        return ChunkForecast(self.at, self.longest, 0)

    def time_left_s(self, slot: int, version: int, now: float) -> float:
        return self.left

    def interval_s(self, slot: int) -> float:
        return self.interval

    def report_pace(self, slot: int, step_s: float, task: str = "") -> None:
        assert task == TASK
        self.reported.append(step_s)

    def verdict(self, slot: int) -> StreamVerdict:
        return StreamVerdict(too_slow=self.too_slow, ahead=self.ahead)

    def foresee(self, at: float) -> None:
        self.at, self.forecasts = at, self.forecasts + 1


class World:
    """One slot, whose steps take `STEP_S`."""

    def __init__(self, **options: Any) -> None:
        self.now, self.done = 100.0, False
        self.router = Forecasts()
        router: Any = self.router
        self.cuts = FreshnessCuts(
            router, 1, least_steps=LEAST, fragment_length=FULL, chunk_steps=FULL, clock=lambda: self.now, **options
        )
        self.recorder: Any = SimpleNamespace(
            length=np.array([LEAST]), is_done=lambda slot: self.done, plays=lambda slot: TASK
        )
        self.step(STEP_S)
        self.cuts.began(0)

    def step(self, seconds: float) -> None:
        self.cuts.stepped(np.array([0]), np.array([seconds]), self.recorder)

    def is_due(self) -> bool:
        return bool(self.cuts.due(np.array([0]), self.recorder)[0])

    def is_overdue(self) -> bool:
        return self.cuts.overdue(np.array([True]), self.recorder) == [0]

    def may_start(self, version: int = 1, *, is_granted: bool = True) -> bool:
        return self.cuts.may_start(0, version, is_granted=is_granted)


@pytest.fixture
def world() -> World:
    return World()


def test_freshness_cuts_without_a_forecast_end_a_chunk_that_takes_longer_than_it_may(world: World) -> None:
    assert not world.is_due() and not world.is_overdue()
    world.now += world.router.longest
    assert world.is_due() and world.is_overdue()
    world.router.longest = math.inf
    world.router.foresee(math.inf)
    assert not world.is_due() and not world.is_overdue()


def test_freshness_cuts_end_a_fragment_whose_next_step_would_pass_its_deadline(world: World) -> None:
    world.router.foresee(110.0)
    world.now = 110.0 - STEP_TIME_SLACK * STEP_S - MARGIN_S - 0.01
    assert not world.is_due()
    world.now += 0.02
    assert world.is_due()
    assert not world.is_overdue()


def test_freshness_cuts_count_a_fragment_whose_step_takes_long_as_overdue_at_its_deadline(world: World) -> None:
    world.router.foresee(110.0)
    world.now = 110.0 - MARGIN_S + 0.01
    assert world.is_overdue()
    assert world.cuts.overdue(np.array([False]), world.recorder) == []
    world.cuts.ended(0)
    assert not world.is_overdue()


def test_freshness_cuts_leave_a_short_fragment_open_unless_its_episode_has_ended(world: World) -> None:
    world.router.foresee(0.0)
    world.recorder.length[0] = LEAST - 1
    assert not world.is_due() and not world.is_overdue()
    world.done = True
    assert world.is_due() and world.is_overdue()
    world.recorder.length[0] = 0
    assert not world.is_due() and not world.is_overdue()


def test_a_slot_without_time_waits_for_newer_weights_but_not_for_ever(world: World) -> None:
    assert world.may_start()
    world.router.left = STEP_TIME_SLACK * LEAST * STEP_S
    assert not world.may_start(1)
    assert world.cuts.lacks[0] == PACE
    assert world.may_start(2)
    assert not world.cuts.lacks[0]
    world.cuts.began(0)
    assert not world.may_start(2)
    world.now += PATIENCE_ITERATIONS * world.router.interval
    assert world.may_start(2)
    world.router.left += MARGIN_S
    world.cuts.began(0)
    assert world.may_start(2)


def test_a_slot_that_is_refused_waits_for_its_pace_only_where_it_is_too_slow(world: World) -> None:
    assert not world.may_start(is_granted=False)
    assert not world.cuts.lacks[0]
    world.router.too_slow = True
    assert not world.may_start(is_granted=False)
    assert world.cuts.lacks[0] == PACE
    world.router.too_slow, world.router.ahead = False, True
    assert not world.may_start(is_granted=False)
    assert world.cuts.lacks[0] == BALANCE


def test_freshness_cuts_report_who_plays_repeatedly_where_slots_wait_for_each_other() -> None:
    world = World(balanced=True)
    working, reported = np.array([True]), len(world.router.reported)
    world.cuts.commands_sent(np.array([0]))
    for _ in range(2):
        world.cuts.report(working, world.recorder)
    assert len(world.router.reported) == reported + 1
    world.now += STUCK_RATIO * STEP_S + REPORT_INTERVAL_S
    world.cuts.report(working, world.recorder)
    assert len(world.router.reported) == reported + 1
    world.now += REPORT_INTERVAL_S
    world.cuts.report(~working, world.recorder)
    assert len(world.router.reported) == reported + 2
    world.cuts.were_reset(np.array([0]))
    world.cuts.commands_sent(np.array([0]))
    world.now += REPORT_INTERVAL_S
    world.cuts.report(working, world.recorder)
    assert len(world.router.reported) == reported + 3


def test_freshness_cuts_do_not_report_who_plays_where_no_slot_waits_for_another(world: World) -> None:
    reported = len(world.router.reported)
    world.cuts.report(np.array([False]), world.recorder)
    assert len(world.router.reported) == reported


def test_freshness_cuts_have_time_for_a_fragment_while_its_shortest_form_fits(world: World) -> None:
    world.router.foresee(110.0)
    world.is_due()
    world.now = 110.0 - STEP_TIME_SLACK * LEAST * STEP_S - MARGIN_S - 0.01
    assert world.cuts.has_time(0)
    world.now += 0.02
    assert not world.cuts.has_time(0)


def test_freshness_cuts_switched_off_let_fragments_start_when_granted_and_end_when_full() -> None:
    world = World(enabled=False)
    world.router.left = 0.0
    world.router.foresee(0.0)
    assert not world.is_due() and not world.is_overdue()
    assert world.may_start()
    assert not world.may_start(is_granted=False)
    assert world.cuts.has_time(0)
    assert world.cuts.step_s(0) == 0 and not world.router.reported


def test_freshness_cuts_leave_a_chunk_whole_that_takes_no_longer_than_it_may(world: World) -> None:
    world.router.longest = 1.1 * FULL * STEP_S
    world.router.left = 0.0
    assert world.may_start()
    world.router.foresee(world.now)
    world.now += LEAST * STEP_S + (HICCUP_RATIO - 1) * FULL * STEP_S - 0.01
    assert not world.is_due() and not world.is_overdue()
    world.now += 0.02
    assert world.is_due() and world.is_overdue()


def reset(world: World, seconds: float) -> None:
    world.cuts.commands_sent(np.array([0]))
    world.now += seconds
    world.cuts.were_reset(np.array([0]))


def test_freshness_cuts_end_a_fragment_before_a_reset_that_it_has_no_time_for(world: World) -> None:
    reset(world, 6.0)
    world.cuts.began(0)
    world.router.longest = 1.1 * FULL * STEP_S
    world.router.foresee(world.now + 6.0 + STEP_TIME_SLACK * STEP_S + 2 * MARGIN_S)
    assert not world.cuts.begin_reset(0, world.recorder)
    world.now += 2 * MARGIN_S
    assert world.cuts.begin_reset(0, world.recorder)
    world.router.longest = FULL * STEP_S + 6.0
    world.router.foresee(world.router.at)
    world.cuts.began(0)
    assert not world.cuts.begin_reset(0, world.recorder)


def test_freshness_cuts_end_a_chunk_in_time_that_a_reset_has_made_too_long(world: World) -> None:
    world.router.longest = 1.1 * FULL * STEP_S
    reset(world, 6.0)
    world.cuts.began(0)
    world.now += LEAST * STEP_S
    world.router.foresee(world.now + 7.0)
    assert not world.cuts.begin_reset(0, world.recorder)
    reset(world, 6.0)
    assert not world.is_due()
    world.now += 1.0
    assert world.is_due()
    world.cuts.began(0)
    world.now += 1.0
    assert not world.is_due()


def test_freshness_cuts_end_a_chunk_in_time_whose_reset_took_longer_than_before(world: World) -> None:
    world.router.longest = 1.2 * FULL * STEP_S
    for _ in range(2):
        reset(world, 0.1)
    for seconds, is_due in ((1.0, False), (1.7, True)):
        world.cuts.began(0)
        world.router.foresee(world.now + 8.0)
        world.cuts.begin_reset(0, world.recorder)
        reset(world, seconds)
        reset(world, 0.4)
        world.now = world.router.at
        assert world.is_due() == is_due


def test_room_is_given_back_while_a_reset_takes_long_or_has_done_so(world: World) -> None:
    def gives_back(seconds: float) -> bool:
        world.cuts.commands_sent(np.array([0]))
        world.now += seconds
        assert world.cuts.long_resets(np.array([False])) == []
        return world.cuts.long_resets(np.array([True])) == [0]

    assert not gives_back(0.4)
    assert gives_back(0.6)
    reset(world, 20.0)
    assert gives_back(0.0)
    reset(world, 0.1)
    assert not gives_back(0.4), "the first one was a start"
    for _ in range(3):
        reset(world, 0.6)
    assert gives_back(0.0)


@pytest.mark.parametrize("options", [{"enabled": False}, {"paced": False}])
def test_no_room_is_given_back_where_nobody_lacks_it_or_time_does_not_count(options: dict[str, bool]) -> None:
    world = World(**options)
    world.cuts.commands_sent(np.array([0]))
    world.now += 60.0
    assert world.cuts.long_resets(np.array([True])) == []


def test_a_chunk_of_several_fragments_ends_before_a_reset_that_leaves_the_next_one_no_time(world: World) -> None:
    reset(world, 6.0)
    world.cuts.began(0)
    world.router.foresee(world.now + 6.0)
    world.cuts.begin_reset(0, world.recorder)
    assert not world.cuts.has_time(0)
    world.cuts.were_reset(np.array([0]))
    assert world.cuts.has_time(0)


def test_freshness_cuts_estimate_of_step_time_follows_slowly(world: World) -> None:
    for _ in range(30):
        world.step(2.0)
    assert world.cuts.step_s(0) == pytest.approx(2.0, rel=0.05)
    assert len(world.router.reported) == 2
    world.step(50.0)
    assert world.cuts.step_s(0) < 2.3
    for _ in range(4):
        world.step(50.0)
    assert 5 < world.cuts.step_s(0) < 10
