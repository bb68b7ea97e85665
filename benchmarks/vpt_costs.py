"""Counts the cost of VPT of each size from the network, without measuring. `docs/minecraft.md` works with it.

python benchmarks/vpt_costs.py [--context 64] [--fragment 256]

Nothing is computed: the tensors are fake, and have shapes only.

forward            multiplications and additions of one frame, FLOPs, by torch's counter; it leaves out what attends to
                   the memory, under 1 %
weights, optimizer float32 weights, and those with gradients and both of Adam's moments
for the backward   what autograd keeps of one fragment's context until its gradients are known, float32
state              recurrent state of one environment
fragment           frames and the state before them, before compression
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from harness.report import aligned
from minefleet.core.tree import Tree, flatten
from minefleet.policies.vpt import PRESETS, VPTArchitecture, VPTPolicy

SIZES = ("1x", "2x", "3x")
WITH_OPTIMIZER = 4
"""Copies of the weights: they, their gradients, and two moments."""
COLUMNS = (
    "size",
    "parameters, M",
    "forward, GFLOP",
    "weights, GB",
    "with optimizer, GB",
    "for the backward, GB",
    "state, MB",
    "fragment, MB",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Of one size. Bytes, and FLOPs of a frame."""

    parameters: int
    forward_flops: float
    activation_bytes: int
    state_bytes: int
    frame_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=64, help="steps of a forward pass (train_config.context_length)")
    parser.add_argument("--fragment", type=int, default=256, help="steps of a fragment")
    arguments = parser.parse_args()
    rows = [row(size, costs(PRESETS[size], arguments.context), arguments.fragment) for size in SIZES]
    print(aligned([list(COLUMNS), *rows]))


def row(size: str, cost: Costs, fragment: int) -> list[str]:
    """One line of the table."""
    weights = 4 * cost.parameters
    figures = (
        (cost.parameters, 1e6),
        (cost.forward_flops, 1e9),
        (weights, 1e9),
        (WITH_OPTIMIZER * weights, 1e9),
        (cost.activation_bytes, 1e9),
        (cost.state_bytes, 1e6),
        (fragment * cost.frame_bytes + cost.state_bytes, 1e6),
    )
    return [
        size,
        *(f"{figure / unit:.3g}" if figure / unit < 100 else f"{figure / unit:.0f}" for figure, unit in figures),
    ]


def costs(architecture: VPTArchitecture, context: int) -> Costs:
    """Counts one forward pass over `context` frames of one environment."""
    with FakeTensorMode():
        policy = VPTPolicy(architecture)
        state = policy.initial_state(1)
        image = torch.zeros(1, context, *architecture.image_shape, dtype=torch.uint8)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            policy({"image": image}, state, torch.zeros(1, context, dtype=torch.bool))
        return Costs(
            parameters=sum(parameter.numel() for parameter in policy.parameters()),
            forward_flops=counter.get_total_flops() / context,
            activation_bytes=kept(policy, image, state),
            state_bytes=sum(leaf.nbytes for leaf in flatten(state).values()),
            frame_bytes=image[0, 0].nbytes,
        )


def kept(policy: VPTPolicy, image: Tensor, state: Tree) -> int:
    """Bytes that autograd keeps between a forward pass and its backward pass, without the weights."""
    weights = {parameter.untyped_storage()._cdata for parameter in policy.parameters()}
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output, _ = policy({"image": image}, state, torch.zeros(image.shape[:2], dtype=torch.bool))
        head = policy.action_head
        action = {name: torch.zeros(image.shape[:2], dtype=torch.int64) for name in head.names}
        (head.logp(output.params, action) + head.entropy(output.params) + output.value).sum()
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(size for storage, size in storages.items() if storage not in weights)


if __name__ == "__main__":
    main()
