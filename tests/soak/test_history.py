"""Many rounds of kills at random moments: no history contradicts a promise."""

import secrets
from pathlib import Path
from random import Random

import pytest
from tests.history.rounds import deck, strike

pytestmark = pytest.mark.soak

ROUNDS = 220
SEEN = ("appended_stored", "appended_duplicate", "appended_expired", "left_abandoned", "left_late", "fenced")


def test_no_history_contradicts_a_promise_over_many_rounds(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**32)
    verdict = strike(tmp_path, deck(ROUNDS, Random(seed)), seed=seed, actors=3, longest_s=1.5)
    assert verdict.faults == [], verdict.story
    assert all(verdict.figures.get(name, 0) > 0 for name in SEEN), (verdict.story, verdict.figures)
