import math

import pytest
import torch

from minefleet_learner.algorithms.truncated_importance_ratio import capped


def test_capped_importance_weight_is_finite_however_large_the_ratio() -> None:
    assert capped(torch.tensor([1e9, 0.0, -1e9]), 2.0).tolist() == [pytest.approx(2.0), 1.0, 0.0]
    assert capped(torch.tensor([1.0]), math.inf).item() == pytest.approx(math.e)
