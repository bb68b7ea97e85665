"""What the learner is told of the actors' slots."""

import math

import pytest

from minefleet.errors import RejectedError
from minefleet_replay.slot_time import SlotSeconds, SlotTime


def test_what_actors_spend_from_their_first_word_on_is_summed() -> None:
    slot_time = SlotTime()
    slot_time.take("a", SlotSeconds(environment=100.0, busy=50.0))
    slot_time.take("b", SlotSeconds(grant=7.0))
    assert slot_time.total == SlotSeconds()
    slot_time.take("a", SlotSeconds(environment=103.0, room=1.0, busy=52.0))
    slot_time.take("b", SlotSeconds(grant=9.0))
    assert slot_time.total == SlotSeconds(environment=3.0, grant=2.0, room=1.0, busy=2.0)


def test_a_word_that_comes_again_or_late_takes_nothing_back() -> None:
    slot_time = SlotTime()
    for seconds in (1.0, 3.0, 3.0, 2.0):
        slot_time.take("a", SlotSeconds(weights=seconds))
    assert slot_time.total == SlotSeconds(weights=2.0)


def test_few_actors_are_remembered_and_a_forgotten_one_is_not_counted_twice() -> None:
    slot_time = SlotTime(max_actors=2)
    for actor in "abc":
        slot_time.take(actor, SlotSeconds(grant=10.0))
    slot_time.take("a", SlotSeconds(grant=12.0))
    assert slot_time.total == SlotSeconds()
    slot_time.take("a", SlotSeconds(grant=13.0))
    assert slot_time.total == SlotSeconds(grant=1.0)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(RejectedError, match="slot_seconds are finite and >= 0"):
        SlotTime().take("a", SlotSeconds(inference=value))
