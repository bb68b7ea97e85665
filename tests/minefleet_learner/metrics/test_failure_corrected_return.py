import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet_learner.metrics.failure_corrected_return import MIN_EPISODES, hazard, uncut_mean

NUMBERS = st.lists(st.tuples(st.floats(-100, 100), st.integers(1, 500)), min_size=1, max_size=100)


def test_censored_mean_return_restores_long_good_episodes_that_failures_cut() -> None:
    """Episodes of 20 to 400 steps pay 1 a step; failures strike one step in 300. The plain mean is far too low."""
    random = np.random.default_rng(3)
    lengths = random.integers(20, 400, 20_000)
    strikes = random.geometric(1 / 300, len(lengths)) - 1
    finished = lengths[strikes >= lengths].tolist()
    seen = np.minimum(lengths, strikes).tolist()
    estimate = uncut_mean([float(length) for length in finished], finished, hazard(seen, len(seen) - len(finished)))
    assert np.mean(finished) < 0.9 * lengths.mean()
    assert estimate == pytest.approx(lengths.mean(), rel=0.02)


@given(NUMBERS, st.floats(0, 0.01))
def test_uncut_mean_equals_its_definition(episodes: list[tuple[float, int]], chance: float) -> None:
    returns, lengths = [one[0] for one in episodes], [one[1] for one in episodes]
    weights = [(1 - chance) ** -length for length in lengths]
    estimate = uncut_mean(returns, lengths, chance)
    worth = sum(weights) ** 2 / sum(weight**2 for weight in weights)
    if abs(worth - MIN_EPISODES) > 1e-6:
        assert (estimate is None) == (worth < MIN_EPISODES)
    if estimate is not None:
        expected = sum(w * r for w, r in zip(weights, returns, strict=True)) / sum(weights)
        assert estimate == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_uncut_mean_without_failures_is_the_plain_mean() -> None:
    assert hazard([3, 4], 0) == 0.0
    assert uncut_mean([1.0, 2.0] * 10, [5, 500] * 10, 0.0) == pytest.approx(1.5)


def test_uncut_mean_that_rests_on_few_long_episodes_is_none() -> None:
    assert uncut_mean([0.0] * 50 + [1000.0], [10] * 50 + [5000], 0.01) is None
    assert uncut_mean([], [], 0.1) is None


def test_episodes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="got 1 and 2"):
        uncut_mean([1.0], [1, 2], 0.0)


def test_hazard_counts_the_step_that_failed() -> None:
    assert hazard([9, 0], 1) == 0.1
