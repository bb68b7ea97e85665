"""Which stage limits, on shares that were thought of and on any."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minefleet.limit import CLEAR_GAIN, FULL, STAGES, Limit, LoopShares, SlotShares, Verdict, judge, names, shares


def judged(slots: dict[str, float], loop: dict[str, float]) -> Limit:
    limit = judge(SlotShares(**slots), LoopShares(**loop))
    assert limit is not None
    return limit


@pytest.mark.parametrize(
    ("slots", "loop", "stage", "gain"),
    [
        ({"environment": 0.9, "inference": 0.1}, {"training": 0.4, "fragments": 0.6}, "environment", 2.5),
        ({"environment": 0.5, "inference": 0.5}, {"training": 0.4, "fragments": 0.6}, "environment", 2.0),
        ({"environment": 0.1, "inference": 0.9}, {"training": 0.4, "fragments": 0.6}, "inference", 2.5),
        ({"environment": 0.3, "inference": 0.1, "grant": 0.6}, {"training": 1.0}, "learner", 2.5),
        ({"environment": 0.3, "inference": 0.1, "grant": 0.6}, {"training": 0.3, "replay": 0.7}, "replay", 2.5),
        ({"environment": 0.3, "inference": 0.1, "room": 0.6}, {"training": 0.4, "fragments": 0.6}, "replay", 2.5),
        ({"environment": 0.4, "weights": 0.6}, {"training": 0.4, "fragments": 0.6}, "weights", 2.5),
        ({"environment": 0.4, "grant": 0.6}, {"training": 0.2, "blocked": 0.8}, "weights", 2.5),
        ({"environment": 0.05, "grant": 0.95}, {"training": 0.1, "weights": 0.9}, "weights", 10.0),
    ],
)
def test_the_stage_that_others_wait_for_limits_by_what_they_wait(
    slots: dict[str, float], loop: dict[str, float], stage: str, gain: float
) -> None:
    limit = judged(slots, loop)
    assert limit.stage == stage
    assert limit.gain == pytest.approx(gain)


def test_loops_that_never_wait_for_each_other_are_balanced() -> None:
    limit = judged({"environment": 0.9, "grant": 0.1}, {"training": 0.9, "fragments": 0.1})
    assert limit.stage is None
    assert limit.gain < CLEAR_GAIN


def test_where_the_loops_take_turns_the_one_with_the_longer_turn_limits_and_the_other_has_a_gain_too() -> None:
    limit = judged({"environment": 0.7, "grant": 0.3}, {"training": 0.3, "fragments": 0.7})
    assert limit.stage == "environment"
    assert limit.gains["environment"] == pytest.approx(1 / 0.3)
    assert limit.gains["learner"] == pytest.approx(1 / 0.7)


def test_nothing_is_said_before_both_loops_were_seen() -> None:
    assert judge(SlotShares(), LoopShares(training=1.0)) is None
    assert judge(SlotShares(environment=1.0), LoopShares()) is None
    assert Verdict(slots=SlotShares(), loop=LoopShares()).to_dict()["limit_gain"] == {}


def split(kind: type[SlotShares] | type[LoopShares]) -> st.SearchStrategy[dict[str, float]]:
    seconds = st.lists(st.floats(0.0, 1e6), min_size=len(names(kind)), max_size=len(names(kind)))
    return seconds.map(lambda values: shares(dict(zip(names(kind), values, strict=True))))


SPLITS = {"slots": split(SlotShares), "loop": split(LoopShares)}


@given(**SPLITS)
def test_no_stage_gains_more_than_either_loop_could(slots: dict[str, float], loop: dict[str, float]) -> None:
    assume(sum(slots.values()) and sum(loop.values()))
    limit = judged(slots, loop)
    assert set(limit.gains) == set(STAGES)
    assert all(gain >= 1 for gain in limit.gains.values())
    could = {
        "environment": 1 - loop["fragments"] - loop["weights"],
        "inference": 1 - loop["fragments"] - loop["weights"],
        "learner": 1 - slots["grant"],
    }
    for stage, busy in could.items():
        assert limit.gains[stage] <= 1 / max(busy, 1e-3) + 1e-6


@given(share=st.floats(0.0, 1.0), **SPLITS)
def test_time_that_moves_from_training_to_waiting_never_makes_the_learner_gain_more(
    slots: dict[str, float], loop: dict[str, float], share: float
) -> None:
    assume(sum(slots.values()) and sum(loop.values()))
    moved = share * loop["training"]
    slower = loop | {"training": loop["training"] - moved, "fragments": loop["fragments"] + moved}
    assert judged(slots, slower).gains["learner"] <= judged(slots, loop).gains["learner"] + 1e-6
    assert judged(slots, slower).gains["environment"] >= judged(slots, loop).gains["environment"] - 1e-6


@given(slots=split(SlotShares), loop=split(LoopShares), actors=st.floats(0, 1), learner=st.floats(0, 1))
def test_a_verdict_survives_being_told_as_figures(
    slots: dict[str, float], loop: dict[str, float], actors: float, learner: float
) -> None:
    verdict = Verdict(slots=SlotShares(**slots), loop=LoopShares(**loop), actors_busy=actors, learner_busy=learner)
    assert Verdict.from_figures(verdict.figures()) == verdict


@pytest.mark.parametrize(
    ("stage", "actors", "learner", "is_full"),
    [("environment", 1.0, 0.1, True), ("environment", 0.1, 1.0, False), ("learner", 1.0, 0.1, False)],
)
def test_cores_count_where_the_stage_is_that_limits(stage: str, actors: float, learner: float, is_full: bool) -> None:
    slots = SlotShares(environment=1.0) if stage == "environment" else SlotShares(environment=0.4, grant=0.6)
    loop = LoopShares(training=0.4, fragments=0.6) if stage == "environment" else LoopShares(training=1.0)
    verdict = Verdict(slots=slots, loop=loop, actors_busy=actors * FULL, learner_busy=learner * FULL)
    assert verdict.limit is not None and verdict.limit.stage == stage
    assert verdict.is_full == is_full
