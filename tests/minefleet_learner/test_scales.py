"""In whatever units a task counts its rewards, the same is learned."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.updates import make_batch, make_updater
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.policies import Policy
from minefleet.policies.policy import zero_value_head
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import rates

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
CONFIG = TrainConfig(
    batch_size_per_gpu=2, batches_per_iteration=3, epochs_per_iteration=2, context_length=4, learning_rate=1e-3
)


def trained(make: Make, policy: Policy, config: TrainConfig, factor: float) -> list[Tensor]:
    """The parameters after three iterations of rewards times a factor."""
    seed_everything(1)
    zero_value_head(policy)
    updater = make_updater(policy, config)
    for number in range(3):
        batch = make_batch(make, number)
        updater.update(replace(batch, reward=factor * batch.reward), rates(config, number, 0.0))
    return [parameter.detach() for parameter in policy.parameters()]


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("off_policy", ["clip", "decoupled", "vtrace"])
def test_weights_do_not_depend_on_the_unit_of_rewards(
    make_fragment: Make, make_policy: MakePolicy, off_policy: str, factor: float
) -> None:
    config = replace(CONFIG, off_policy=off_policy)  # type: ignore[arg-type]  # The parameters name it.
    ones, others = (trained(make_fragment, make_policy(), config, scale) for scale in (1.0, factor))
    torch.testing.assert_close(ones, others, rtol=1e-3, atol=1e-5)


def test_weights_depend_on_the_unit_of_rewards_without_normalised_values(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(CONFIG, use_normalized_vf=False)
    one, other = make_policy(), make_policy()
    one.value_norm.enabled = other.value_norm.enabled = False
    ones, others = trained(make_fragment, one, config, 1.0), trained(make_fragment, other, config, 1e3)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(ones, others, rtol=1e-3, atol=1e-5)
