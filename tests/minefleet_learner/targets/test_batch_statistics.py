"""A batch is reported before it is trained on."""

from collections.abc import Callable

import pytest
import torch

from minefleet.core.fragment import Fragment
from minefleet_learner.data.batch import collate
from minefleet_learner.distributed.ranks import SINGLE_RANK
from minefleet_learner.targets.batch_statistics import BatchStats, measure_batch
from minefleet_learner.targets.value_and_advantage_estimates import Estimates


@pytest.fixture
def look(make_fragment: Callable[..., Fragment]) -> Callable[[torch.Tensor, torch.Tensor], BatchStats]:
    batch = collate([(("s", number), make_fragment(number, 5 + number)) for number in range(4)])

    def look(value: torch.Tensor, target: torch.Tensor) -> BatchStats:
        advantage = target - value
        part = Estimates(
            batch=batch,
            trained=batch.mask,
            value=value,
            advantage=advantage,
            target=target,
            proximal_logp=None,
            start={},
        )
        return measure_batch(part, SINGLE_RANK, torch.device("cpu"), 50.0)

    return look


def test_explained_variance_is_one_for_the_truth_zero_for_the_mean_and_finite_for_constant_targets(
    look: Callable[[torch.Tensor, torch.Tensor], BatchStats],
) -> None:
    target = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    assert look(target, target).explained_variance == 1.0
    assert look(torch.ones(4, 8), target).explained_variance == pytest.approx(0, abs=1e-6)
    assert look(0.5 * target, target).explained_variance == pytest.approx(0.75, abs=1e-6)
    assert look(target, torch.ones(4, 8)).explained_variance == 0.0


def test_training_statistics_leave_out_padding(look: Callable[[torch.Tensor, torch.Tensor], BatchStats]) -> None:
    value, target = torch.ones(4, 8), torch.full((4, 8), 3.0)
    value[0, 5:] = target[0, 5:] = float("nan")
    value[1, 6:] = target[2, 7:] = float("inf")
    before = look(value, target)
    assert before.value.count.item() == 5 + 6 + 7 + 8
    assert (before.value.mean.item(), before.advantage.mean.item()) == (1.0, 2.0)
