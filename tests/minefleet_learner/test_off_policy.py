"""Learning from steps of another policy gives values that can be written down."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from harness import ring
from minefleet.config import TrainConfig

DISCOUNT = 0.9
CONFIG: dict[str, Any] = {
    "batch_size_per_gpu": ring.SLOTS,
    "num_iterations": 150,
    "vf_warmup": 150,
    "epochs_per_iteration": 4,
    "discount": DISCOUNT,
    "learning_rate": 0.05,
    "anneal_lr_linearly": True,
}


def test_off_policy_clip_reaches_the_value_of_the_behaviour_policy() -> None:
    values = ring.learned(TrainConfig(off_policy="clip", **CONFIG))
    np.testing.assert_allclose(values, ring.value_of(ring.BEHAVIOUR, DISCOUNT), rtol=0.02)


@pytest.mark.parametrize("rho_bar", [1.0, pytest.param(2.0, marks=pytest.mark.soak)])
def test_off_policy_vtrace_reaches_its_fixed_point(rho_bar: float) -> None:
    values = ring.learned(TrainConfig(off_policy="vtrace", vtrace_rho_bar=rho_bar, **CONFIG))
    fixed_point = ring.value_of(ring.between(ring.BEHAVIOUR, ring.TARGET, rho_bar), DISCOUNT)
    np.testing.assert_allclose(values, fixed_point, rtol=0.02)


def test_off_policy_ring_policies_have_distinguishable_values() -> None:
    policies = [ring.BEHAVIOUR, *(ring.between(ring.BEHAVIOUR, ring.TARGET, bar) for bar in (1.0, 2.0)), ring.TARGET]
    values = [ring.value_of(policy, DISCOUNT).mean() for policy in policies]
    assert all(later > 1.02 * earlier for earlier, later in pairwise(values))
