"""Statistics of importance weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minefleet_learner.algorithms.importance_weight_statistics import weigh

LOGS = st.lists(st.floats(-5, 5), min_size=1, max_size=30)


@given(LOGS)
def test_importance_weight_statistics_equal_their_definitions_over_the_mask(logs: list[float]) -> None:
    log_ratio = torch.tensor([[*logs, math.nan]], dtype=torch.float64)
    weights = weigh(log_ratio, ~log_ratio.isnan(), 50.0)
    ratios = [math.exp(log) for log in logs]
    assert weights.mean == pytest.approx(sum(ratios) / len(ratios), rel=1e-9)
    assert weights.largest == pytest.approx(max(ratios), rel=1e-9)
    expected = sum(ratios) ** 2 / (len(ratios) * sum(ratio**2 for ratio in ratios))
    assert weights.effective_sample_size == pytest.approx(expected, rel=1e-9)


def test_equal_weights_lose_nothing_and_one_that_outweighs_all_leaves_one_step() -> None:
    mask = torch.ones(1, 10, dtype=torch.bool)
    assert weigh(torch.full((1, 10), 0.7), mask, 50.0).effective_sample_size == pytest.approx(1.0)
    assert weigh(torch.tensor([[1e4] + [0.0] * 9]), mask, 50.0).effective_sample_size == pytest.approx(0.1)


def test_importance_weights_of_no_steps_have_a_nan_mean() -> None:
    nothing = weigh(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool), 50.0)
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.effective_sample_size)
