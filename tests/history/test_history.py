"""A short history. The long one is in tests/soak."""

from pathlib import Path

import pytest
from tests.history.fleet import kill_actor, kill_learner, kill_replay, usurp
from tests.history.rounds import strike


@pytest.mark.fleet
def test_no_history_contradicts_a_promise_although_everyone_is_killed(tmp_path: Path) -> None:
    strikes = [kill_replay, kill_learner, kill_actor, usurp]
    verdict = strike(tmp_path, strikes, seed=1, actors=2, longest_s=0.3)
    assert verdict.faults == [], verdict.story
    assert verdict.figures["acked_leases"] > 0
    assert verdict.figures["fenced"] > 0
