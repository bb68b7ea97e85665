"""Fifty kills of each kind in and around publishes and fetches."""

from pathlib import Path

import pytest
from tests.parameters_kills import Arena, Victim

pytestmark = pytest.mark.soak

ROUNDS = 50


@pytest.mark.parametrize("victim", ["parameters in a publish", "parameters in a fetch", "learner", "actor"])
def test_kills_leave_whole_versions_that_only_rise(tmp_path: Path, victim: Victim) -> None:
    arena = Arena(tmp_path, seed=ROUNDS)
    with arena.running():
        for number in range(ROUNDS):
            arena.round(victim)
            if number % 10 == 9:
                arena.round("learner")
        arena.check()
    assert arena.cut_publishes > 0 or "parameters" not in victim
