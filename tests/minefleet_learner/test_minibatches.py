"""The gradient of each optimizer step against its definition, written step by step: one observation at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.policies import Policy
from minefleet_learner.algorithms.ppo import normalize
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.targets.value_and_advantage_estimates import estimate
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
GRU, SEED = 5, 11
LENGTHS = (8, 5, 8, 3)
CONFIG = TrainConfig(
    batch_size_per_gpu=2,
    batches_per_iteration=2,
    context_length=3,
    entropy_bonus_coef=0.02,
    max_grad_norm=1e9,
    use_normalized_vf=False,
)


def slow_values(policy: Policy, fragment: Fragment, begin: int, steps: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Logits and value of some steps; the gradient begins at `begin`, the state runs there from the stored one."""
    state: Any = {path: torch.from_numpy(leaf)[None] for path, leaf in fragment.recurrent_state.items()}
    found = []
    for step in range(max(steps) + 1):
        obs = {"vector": torch.from_numpy(fragment.obs["vector"][step])[None, None]}
        with torch.set_grad_enabled(step >= begin):
            output, state = policy(obs, state, torch.tensor([[bool(fragment.first[step])]]))
        if step in steps:
            found.append((output.params.flatten(), output.value.squeeze()))
    return found


def slow_loss(
    policy: Policy, fragments: list[Fragment], minibatch: list[tuple[int, list[int]]], advantage: Tensor, target: Tensor
) -> Tensor:
    """The mean over all steps of a minibatch, of pieces (fragment, steps)."""
    losses = []
    for row, steps in minibatch:
        fragment = fragments[row]
        for step, (logits, value) in zip(steps, slow_values(policy, fragment, steps[0], steps), strict=True):
            logp = torch.log_softmax(logits, -1)
            ratio = (logp[int(fragment.action[step])] - float(fragment.behaviour_logp[step])).exp()
            gain = advantage[row, step]
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - CONFIG.ppo_clip, 1 + CONFIG.ppo_clip) * gain)
            error = 0.5 * (value - target[row, step]) ** 2
            entropy = -(logp.exp() * logp).sum()
            losses.append(-surrogate + CONFIG.ppo_vf_coef * error - CONFIG.entropy_bonus_coef * entropy)
    return torch.stack(losses).mean()


def pieces_of(longest: int) -> list[tuple[int, list[int]]]:
    return [
        (row, list(range(start, min(start + longest, length))))
        for row, length in enumerate(LENGTHS)
        for start in range(0, length, longest)
    ]


@pytest.mark.parametrize("gru_size", [0, GRU])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_gradient_is_that_of_the_mean_over_a_minibatch_drawn_from_all_of_the_iteration(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int, accumulation: int
) -> None:
    state = {"gru": np.zeros(gru_size)} if gru_size else {}
    fragments = [make_fragment(seed, length, truncated=(1,), state=state) for seed, length in enumerate(LENGTHS)]
    batch = collate([((f"s{row}", 0), fragment) for row, fragment in enumerate(fragments)])
    policy = make_policy(gru_size)
    policy.value_norm.enabled = False
    config = replace(CONFIG, gradient_accumulation=accumulation)
    # With a rate of 0, so that the states before sequences are those of the weights whose gradient is taken.
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    gradients = list[list[Tensor]]()
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    )
    advantage, target = numbers(policy, batch, config)
    torch.manual_seed(SEED)
    Updater(policy, optimizer, config, None).update(batch, replace(rates(config, 0, 0.0), learning_rate=0.0))
    torch.manual_seed(SEED)
    pieces = pieces_of(CONFIG.context_length if gru_size else 1)
    minibatches = torch.tensor_split(torch.randperm(len(pieces)), 2 // accumulation)
    assert len(gradients) == len(minibatches)
    for gradient, chosen in zip(gradients, minibatches, strict=True):
        loss = slow_loss(policy, fragments, [pieces[number] for number in chosen], advantage, target)
        expected = torch.autograd.grad(loss, list(policy.parameters()))
        for got, wanted in zip(gradient, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def numbers(policy: Policy, batch: Batch, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Normalised advantages and value targets, [B, T]."""
    estimates = estimate(policy, batch, config)
    return normalize(estimates.advantage, batch.mask), estimates.target
