import subprocess
import sys

import crafter
import numpy as np
import pytest

from minefleet.core.crafter_score import ACHIEVEMENTS, METRICS, score


def test_crafter_score_equals_its_definition_on_random_rates() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rates = rng.random(22) ** 3
        product = 1.0
        for rate in rates:
            product *= 1 + 100 * rate
        assert score(dict(zip(METRICS, rates.tolist(), strict=True))) == pytest.approx(product ** (1 / 22) - 1)


def test_crafter_score_runs_from_0_to_100() -> None:
    assert score(dict.fromkeys(METRICS, 0.0)) == 0.0
    assert score(dict.fromkeys(METRICS, 1.0)) == pytest.approx(100.0)


def test_crafter_score_knows_crafters_achievements() -> None:
    assert set(ACHIEVEMENTS) == set(crafter.constants.achievements)


def test_missing_and_unknown_achievements_are_named() -> None:
    rates = dict.fromkeys(METRICS[1:], 0.5) | {"achievement/fly": 0.5}
    with pytest.raises(ValueError, match=r"unknown: achievement/collect_coal, achievement/fly"):
        score(rates)


def test_rates_in_percent_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        score(dict.fromkeys(METRICS, 50.0))


def test_the_score_needs_no_gymnasium() -> None:
    code = "import sys, minefleet.core.crafter_score; print('gymnasium' in sys.modules, 'crafter' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
