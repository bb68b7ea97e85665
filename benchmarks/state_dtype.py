"""Measures the effect of `rollout_config.state_dtype`: log-probabilities and values after a state was rounded.

python benchmarks/state_dtype.py [--size tiny] [--steps 64] [--rows 16]

A VPT network with random weights sees random images until its memory is full. Then its state is rounded as a fragment
keeps it, and both states go on for a fragment's steps. The heads' weights are scaled, for fresh ones are so flat that
nothing would show. Actors act on from the rounded state and the learner starts from it: this is how far a fragment's
policy is from the exact one, not how far the learner is from the actor.
"""

import argparse

import torch
from torch import Tensor

from harness.report import aligned, line
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import PolicyOutput
from minefleet.policies.precision import DTYPES
from minefleet.policies.vpt import PRESETS, VPTPolicy

SHARPNESS = 3000.0
"""Factor of the heads' weights."""
COLUMNS = ("state, bytes", "mean |Δ ln π|", "99 %", "largest", "of the first step", "mean |ΔV|, normalised")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=PRESETS, default="tiny")
    parser.add_argument("--steps", type=int, default=64, help="of a fragment")
    parser.add_argument("--rows", type=int, default=16, help="fragments")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    policy = VPTPolicy(PRESETS[arguments.size]).eval()
    with torch.inference_mode():
        for head in policy.action_head.heads.values():
            for parameter in head.parameters():
                parameter.mul_(SHARPNESS)
        rows = measure(policy, arguments.rows, arguments.steps)
    print(
        aligned(
            [[f"VPT {arguments.size}", *COLUMNS], *([name, *(f"{x:.2g}" for x in row)] for name, row in rows.items())]
        )
    )
    for name, row in rows.items():
        print(line("state_dtype", name, "nats", row[1]))


def measure(policy: VPTPolicy, rows: int, steps: int) -> dict[str, list[float]]:
    """The figures of `COLUMNS`, by dtype."""
    _, state = seen(policy, policy.initial_state(rows), policy.architecture.memory)
    generator = torch.Generator().manual_seed(1)
    image = images(policy, rows, steps, generator)
    first = torch.zeros(rows, steps, dtype=torch.bool)
    exact, _ = policy({"image": image}, state, first)
    action = policy.action_head.sample(exact.params, generator=generator)
    print(f"entropy {policy.action_head.entropy(exact.params).mean():.2f} nats")
    return {name: compared(policy, image, rounded(state, dtype), exact, action) for name, dtype in DTYPES.items()}


def compared(policy: VPTPolicy, image: Tensor, state: Tree, exact: PolicyOutput, action: Tree) -> list[float]:
    """The figures of one dtype."""
    first = torch.zeros(image.shape[:2], dtype=torch.bool)
    output, _ = policy(
        {"image": image}, tree_map(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, state), first
    )
    logp = policy.action_head.logp
    change = (logp(output.params, action) - logp(exact.params, action)).abs()
    state_bytes = sum(leaf[0].nbytes for leaf in flatten(state).values())
    quantile = change.flatten().quantile(0.99)
    figures = [change.mean(), quantile, change.max(), change[:, 0].mean(), (output.value - exact.value).abs().mean()]
    return [state_bytes, *(float(figure) for figure in figures)]


def seen(policy: VPTPolicy, state: Tree, steps: int) -> tuple[PolicyOutput, Tree]:
    """Has the policy look at random images."""
    rows = len(state["remembered"])
    first = torch.zeros(rows, steps, dtype=torch.bool)
    image = images(policy, rows, steps, torch.Generator().manual_seed(0))
    return policy({"image": image}, state, first)  # type: ignore[no-any-return]  # A module's result has no type.


def images(policy: VPTPolicy, rows: int, steps: int, generator: torch.Generator) -> Tensor:
    """[rows, steps, H, W, 3] noise."""
    shape = (rows, steps, *policy.architecture.image_shape)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def rounded(state: Tree, dtype: torch.dtype) -> Tree:
    """The floats of a state in another dtype."""
    return tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, state)


if __name__ == "__main__":
    main()
