"""The learner's policy as compiled code."""

import torch

from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import tree_map
from minefleet.policies import Policy
from minefleet.policies.precision import compute
from minefleet.policies.torch_compile import compiled
from minefleet_learner.targets.forward_passes import has_memory

ROWS, STEPS = 3, 4
"""Of what it is tried on; neither is 1, which would be compiled for 1 alone."""


def compiled_policy(policy: Policy, schema: Schema, dtype: torch.dtype) -> Policy:
    """The policy with compiled passes, on the same weights; itself where that fails, and a log line says so."""
    outcome = compiled(policy, lambda module: _try_out(module, policy, schema, dtype), dynamic=True)
    return policy if outcome is None else outcome


def _try_out(outcome: Policy, policy: Policy, schema: Schema, dtype: torch.dtype) -> None:
    """Forward and backward over zeros, as the learner runs it: over whole rows with memory, else over steps in line."""
    rows, steps = (ROWS, STEPS) if has_memory(policy) else (ROWS * STEPS, 1)
    device = policy.value_norm.mean.device

    def zeros(leaf: Leaf) -> torch.Tensor:
        return torch.from_numpy(leaf.zeros(rows, steps)).to(device)

    first = torch.zeros(rows, steps, dtype=torch.bool, device=device)
    output, _ = compute(outcome, tree_map(zeros, schema.obs), policy.initial_state(rows), first, dtype)
    policy.action_head.entropy(output.params).sum().add(output.value.sum()).backward()  # type: ignore[no-untyped-call]
    policy.zero_grad(set_to_none=True)
