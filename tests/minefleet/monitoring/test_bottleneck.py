"""The bottleneck follows from the shares of time, for chosen shares and for any."""

import re
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.config import FleetConfig
from minefleet.monitoring.bottleneck import BALANCED, CLEAR_SHARE, LOOP_STAGES, SENTENCES, SLOTS, find, find_in

SECONDS = st.floats(0.0, 1e6)


@pytest.mark.parametrize(
    ("slots", "loop", "stage"),
    [
        ({"environment": 0.9, "inference": 0.1}, {"training": 0.4, "fragments": 0.6}, "environment"),
        ({"environment": 0.1, "inference": 0.9}, {"training": 0.4, "fragments": 0.6}, "inference"),
        ({"environment": 0.3, "inference": 0.1, "grant": 0.6}, {"training": 1.0}, "learner"),
        ({"environment": 0.3, "inference": 0.1, "grant": 0.6}, {"training": 0.3, "replay": 0.7}, "replay"),
        ({"environment": 0.3, "inference": 0.1, "room": 0.6}, {"training": 0.4, "fragments": 0.6}, "replay"),
        ({"environment": 0.4, "weights": 0.6}, {"training": 0.4, "fragments": 0.6}, "weights"),
        ({"environment": 0.4, "grant": 0.6}, {"training": 0.2, "blocked": 0.8}, "weights"),
        ({"environment": 0.05, "grant": 0.95}, {"training": 0.1, "weights": 0.9}, "weights"),
        ({"environment": 0.7, "grant": 0.3}, {"training": 0.3, "fragments": 0.7}, "environment"),
    ],
)
def test_bottleneck_is_the_longest_stage_of_the_loop_that_waits_less(
    slots: dict[str, float], loop: dict[str, float], stage: str
) -> None:
    found = find(slots, loop)
    assert found is not None
    assert found.stage == stage
    assert found.sentence == SENTENCES[found.stage]


def test_loops_that_never_wait_for_each_other_are_balanced() -> None:
    found = find({"environment": 0.9, "grant": 0.1}, {"training": 0.9, "fragments": 0.1})
    assert found is not None
    assert (found.stage, found.sentence) == (None, BALANCED)


def test_bottleneck_is_unknown_before_both_loops_were_seen() -> None:
    assert find({}, {"training": 1.0}) is None
    assert find({"environment": 1.0}, dict.fromkeys(LOOP_STAGES, 0.0)) is None


def test_actors_count_by_the_time_of_their_slots() -> None:
    busy, idle = {"slot_seconds.environment": 90.0, "slots": 3.0}, {"slot_seconds.grant": 30.0, "slots": 1.0}
    found = find_in([busy, idle, {"loop_seconds.training": 4.0, "loop_seconds.fragments": 6.0}, {"episodes": 1.0}])
    assert found is not None
    assert (found.slots["environment"], found.slots["grant"], found.loop["fragments"]) == (0.75, 0.25, 0.6)


@given(
    slots=st.fixed_dictionaries(dict.fromkeys(SLOTS, SECONDS)),
    loop=st.fixed_dictionaries(dict.fromkeys(LOOP_STAGES, SECONDS)),
)
def test_a_stage_that_takes_no_time_never_holds_the_run_up(slots: dict[str, float], loop: dict[str, float]) -> None:
    found = find(slots | {"environment": 0.0}, loop)
    assert found is None or found.stage != "environment" or not any(found.slots[name] for name in SLOTS[1:])
    found = find(slots, loop | {"fragments": 0.0})
    assert found is None or found.stage not in ("environment", "inference")
    if found is not None and found.slots["grant"] >= CLEAR_SHARE:
        assert found.stage is not None


@pytest.mark.parametrize("sentence", SENTENCES.values())
def test_bottleneck_sentences_name_existing_keys(sentence: str) -> None:
    keys = re.findall(r"\w+_config(?:\.\w+)+|rollout_config\.\w+", sentence)
    assert keys
    for key in keys:
        attrgetter(key)(FleetConfig())
