"""The time of slots is accounted for, by a clock that is passed in."""

import pytest

from minefleet_actor.metrics.wait_time_breakdown import ENVIRONMENT, INFERENCE, NO_WAIT_S, SlotTimer

GRANT = "grant"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_slot_timer_charges_time_between_turns_to_what_each_slot_waits_for(clock: Clock) -> None:
    slot_time = SlotTimer(clock)
    slot_time.end_wait(0, 1.0)
    slot_time.wait_for([(ENVIRONMENT, 3), (INFERENCE, 1), (GRANT, 2)], acted=0)
    clock.now_s += 10.0
    slot_time.end_wait(1, 10.0)
    assert slot_time.seconds() == {
        "environment": 30.0,
        "inference": 10.0,
        "grant": 20.0,
        "room": 0.0,
        "weights": 0.0,
        "pace": 0.0,
        "balance": 0.0,
    }


def test_slot_timer_charges_environments_ready_before_the_loop_looked_to_the_actor(clock: Clock) -> None:
    slot_time = SlotTimer(clock)
    slot_time.end_wait(0, 1.0)
    slot_time.wait_for([(ENVIRONMENT, 4)], acted=0)
    slot_time.end_wait(0, 1.0)
    clock.now_s += 1.0
    slot_time.wait_for([(ENVIRONMENT, 4)], acted=0)
    clock.now_s += 0.5
    slot_time.end_wait(3, NO_WAIT_S / 2)
    assert slot_time.seconds()["inference"] == pytest.approx(3.0)
    assert slot_time.seconds()["environment"] == pytest.approx(1.0 + 4 * 0.5)
    clock.now_s += 1.0
    slot_time.wait_for([(ENVIRONMENT, 4)], acted=0)
    clock.now_s += 5.0
    slot_time.end_wait(4, 5.0)
    assert slot_time.seconds()["inference"] == pytest.approx(3.0)


def test_slot_timer_charges_the_turn_in_which_a_slot_acted_to_inference(clock: Clock) -> None:
    slot_time = SlotTimer(clock)
    slot_time.end_wait(0, 1.0)
    clock.now_s += 3.0
    slot_time.wait_for([(ENVIRONMENT, 7), (GRANT, 1)], acted=6)
    clock.now_s += 5.0
    slot_time.end_wait(4, 5.0)
    totals = slot_time.seconds()
    assert totals["inference"] == pytest.approx(6 * 3.0)
    assert totals["environment"] == pytest.approx(3.0 + 7 * 5.0)
    assert totals["grant"] == pytest.approx(8.0)
