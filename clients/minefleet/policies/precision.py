"""The element type in which a policy computes below its heads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from minefleet.core.tree import Tree, tree_map
from minefleet.policies.policy import Policy, PolicyOutput

cudnn = torch.backends.cudnn
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def compute(policy: Policy, obs: Tree, state: Tree, first: Tensor, dtype: torch.dtype) -> tuple[PolicyOutput, Tree]:
    """Runs a policy as `Policy.forward` says, its layers below the heads in `dtype`; float32 leaves it alone.

    What comes out is float32 all the same, and the state has the types that it came with: so actors and the learner,
    which cut time differently, round alike.
    """
    if dtype == torch.float32:
        return policy(obs, state, first)  # type: ignore[no-any-return]  # A module's result has no type.
    with torch.autocast(first.device.type, dtype):
        output, after = policy(obs, state, first)
    return (
        PolicyOutput(tree_map(lambda leaf: leaf.float(), output.params), output.value.float(), output.encoded),
        tree_map(lambda new, old: new.to(old.dtype), after, state),
    )


@contextmanager
def exact_float32() -> Iterator[None]:
    """Keeps float32 what it is: by default torch convolves and runs GRUs on a GPU with ten bits of its mantissa (TF32).

    Two devices that round differently would differ by more than what distinguishes a fault from rounding.
    """
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        cudnn.allow_tf32 = before
