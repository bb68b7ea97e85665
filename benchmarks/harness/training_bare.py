"""Measures torch alone, for `benchmarks/learner.py`: the same PPO as a bare loop over tensors in memory.

    python -m harness.training_bare ITERATIONS

As many forward and backward passes over the same tensors by the same network: values of all that was seen, GAE, then
epochs of micro-batches, each a step of the same fused AdamW. Nothing is padded, cut, checked or counted.
"""

import sys

import numpy as np
import torch
from torch import Tensor

from harness.training import CONFIG, FRAGMENTS, STEPS, fragments, make_policy, measure
from minefleet.policies import Policy
from minefleet_runtime.process_setup import keep_freed_memory


def main() -> None:
    keep_freed_memory()
    policy, data = make_policy(), tensors()
    optimizer = torch.optim.AdamW(
        policy.parameters(), CONFIG.learning_rate, eps=CONFIG.adam_eps, weight_decay=0.0, fused=True
    )
    measure(lambda: iterate(policy, optimizer, data), int(sys.argv[1]))


def tensors() -> dict[str, Tensor]:
    """[B, T, ...] each; `seen` [B, T + 1, ...] ends with the observation after the fragment."""
    made = fragments()
    names = ("action", "reward", "terminated", "first", "behaviour_logp")
    data = {name: torch.from_numpy(np.stack([getattr(one, name) for one in made])) for name in names}
    seen = np.stack([np.concatenate([one.obs, one.cut_obs]) for one in made])
    return data | {"seen": torch.from_numpy(seen)}


def iterate(policy: Policy, optimizer: torch.optim.Optimizer, data: dict[str, Tensor]) -> None:
    """One iteration."""
    value, advantage = estimate(policy, data)
    target = advantage + value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(CONFIG.epochs_per_iteration):
        for rows in torch.split(torch.randperm(FRAGMENTS), CONFIG.batch_size_per_gpu):
            optimizer.zero_grad()
            loss = loss_of(policy, data, rows, advantage[rows], target[rows])
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it.
            torch.nn.utils.clip_grad_norm_(policy.parameters(), CONFIG.max_grad_norm)
            optimizer.step()


@torch.no_grad()
def estimate(policy: Policy, data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """V(sₜ) and Âₜ, [B, T]."""
    parts = []
    for rows in torch.split(torch.arange(FRAGMENTS), CONFIG.batch_size_per_gpu):
        first = torch.cat((data["first"][rows], torch.zeros(len(rows), 1, dtype=torch.bool)), 1)
        parts.append(policy(data["seen"][rows], policy.initial_state(len(rows)), first)[0].value)
    values, goes_on = torch.cat(parts), (~data["terminated"]).float()
    delta = data["reward"] + CONFIG.discount * values[:, 1:] * goes_on - values[:, :-1]
    advantage, carried = torch.zeros_like(delta), torch.zeros(FRAGMENTS)
    for step in reversed(range(STEPS)):
        carried = delta[:, step] + CONFIG.discount * CONFIG.gae_lambda * goes_on[:, step] * carried
        advantage[:, step] = carried
    return values[:, :-1], advantage


def loss_of(policy: Policy, data: dict[str, Tensor], rows: Tensor, advantage: Tensor, target: Tensor) -> Tensor:
    """PPO's loss of a micro-batch."""
    output, _ = policy(data["seen"][rows, :-1], policy.initial_state(len(rows)), data["first"][rows])
    logp = policy.action_head.logp(output.params, data["action"][rows])
    ratio = (logp - data["behaviour_logp"][rows]).exp()
    clipped = ratio.clamp(1 - CONFIG.ppo_clip, 1 + CONFIG.ppo_clip)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_loss = 0.5 * (output.value - target).square().mean()
    entropy = policy.action_head.entropy(output.params).mean()
    loss: Tensor = policy_loss + CONFIG.ppo_vf_coef * value_loss - CONFIG.entropy_bonus_coef * entropy
    return loss


if __name__ == "__main__":
    main()
