"""What the learner says of where time goes, by a clock that is passed in."""

import math

import pytest
from prometheus_client import CollectorRegistry

from minefleet.limit import LoopShares, SlotShares, Verdict
from minefleet_learner.advisor import LEAST, WINDOW_S, Advisor, SlotSeconds
from minefleet_learner.loop_time import LoopTime
from minefleet_runtime.processor import CoreTime


class World:
    """A clock, what slots have spent, and how busy the cores are."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slots = SlotSeconds()
        self.cores = CoreTime(0.0, 0.0)
        self.advisor = Advisor(lambda: self.slots, 1, clock=lambda: self.now_s, cores=lambda: self.cores)
        self.time = self.advisor.loop_time

    def iterate(
        self, *, waits_s: float = 0.0, trains_s: float = 0.0, busy: float = 0.0, slots_busy: float = 0.0, **slots: float
    ) -> Verdict:
        """One iteration; `slots` are added to what slots have spent."""
        self.time.waits()
        self.now_s += waits_s
        self.time.trains()
        self.now_s += trains_s
        passed_s = waits_s + trains_s
        more = slots | {"busy": slots_busy}
        kinds = SlotSeconds.DESCRIPTOR.fields_by_name
        self.slots = SlotSeconds(**{kind: getattr(self.slots, kind) + more.get(kind, 0.0) for kind in kinds})
        self.cores = CoreTime(self.cores.busy_s + busy * passed_s, self.cores.total_s + passed_s)
        return self.advisor.lap()


def test_the_loop_waits_for_what_feed_and_backlog_say() -> None:
    now = [0.0]
    time = LoopTime(1, lambda: now[0])

    def pass_s(seconds: float) -> None:
        now[0] += seconds

    pass_s(100.0)
    time.waits()
    pass_s(100.0)  # Before the first fragments nothing counts.
    time.trains()
    time.waits()
    pass_s(1.0)
    with time.reading():
        pass_s(2.0)
    time.trains()
    with time.reading():  # Ahead of the next iteration.
        pass_s(4.0)
    with time.standing_still():
        pass_s(8.0)
    time.trained()
    time.waits()
    pass_s(16.0)  # One version that is not out: fragments may be one version old.
    time.trained()
    pass_s(32.0)
    assert time.seconds()["weights"] == 32.0, "while the wait goes on"
    time.published()
    pass_s(64.0)
    assert time.seconds() == {"training": 4.0, "fragments": 81.0, "replay": 2.0, "weights": 32.0, "blocked": 8.0}


def test_shares_are_those_of_the_last_while() -> None:
    world = World()
    for _ in range(100):
        world.iterate(waits_s=1.0, environment=5.0)
    for _ in range(int(WINDOW_S) + LEAST):
        verdict = world.iterate(trains_s=1.0, grant=5.0, busy=0.5)
    assert verdict.loop == LoopShares(training=1.0)
    assert verdict.slots == SlotShares(grant=1.0)
    assert verdict.limit is not None and verdict.limit.stage == "learner"
    assert verdict.learner_busy == pytest.approx(0.5)


def test_long_iterations_are_seen_whole() -> None:
    world = World()
    for _ in range(LEAST + 2):
        verdict = world.iterate(waits_s=300.0, trains_s=100.0, environment=300.0, grant=100.0, busy=1.0)
    assert verdict.loop == LoopShares(training=0.25, fragments=0.75)
    assert verdict.slots == SlotShares(environment=0.75, grant=0.25)
    assert verdict.limit is not None and verdict.limit.stage == "environment"


def test_the_busy_cores_of_actors_weigh_by_slots() -> None:
    world = World()
    for _ in range(3):
        verdict = world.iterate(trains_s=1.0, environment=6.0, grant=2.0, slots_busy=4.0)
    assert verdict.actors_busy == pytest.approx(0.5)


def test_after_replay_has_started_anew_shares_are_taken_anew() -> None:
    world = World()
    for _ in range(5):
        world.iterate(trains_s=10.0, grant=5.0)
    world.slots = SlotSeconds()
    world.iterate(trains_s=10.0)
    verdict = world.iterate(waits_s=10.0, environment=1.0)
    assert verdict.slots == SlotShares(environment=1.0)


def test_a_stall_is_seen_while_it_lasts_and_exported() -> None:
    world, registry = World(), CollectorRegistry()
    registry.register(world.advisor)
    unknown = registry.get_sample_value("minefleet_learner_limit_gain", {"stage": "weights"})
    assert unknown is not None and math.isnan(unknown)
    for _ in range(3):
        world.iterate(waits_s=1.0, trains_s=1.0, environment=1.0, grant=1.0)
    for _ in range(2):
        world.time.trained()
    world.time.waits()
    world.now_s += 1000.0
    world.slots = SlotSeconds(environment=3.0, grant=1003.0)
    figures = world.advisor.figures()
    assert figures["loop_share.weights"] > 0.9
    gains = {
        stage: registry.get_sample_value("minefleet_learner_limit_gain", {"stage": stage})
        for stage in ("environment", "inference", "replay", "learner", "weights")
    }
    assert max(gains, key=lambda stage: gains[stage] or 0.0) == "weights"
    assert registry.get_sample_value("minefleet_learner_loop_seconds_total", {"spent_on": "weights"}) == 1000.0
