"""Refuses tensors of estimates and losses that are not of one shape."""

from torch import Tensor


def check_shapes(*tensors: Tensor | None) -> None:
    """Raises `ValueError` unless the tensors share one [B, T] shape; None, for one that is left out, has none."""
    shapes = {tuple(tensor.shape) for tensor in tensors if tensor is not None}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"expected one shared [B, T] shape, got {sorted(shapes)}")
