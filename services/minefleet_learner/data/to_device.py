"""Copies tensors to the device while it computes."""

import torch
from torch import Tensor

from minefleet.core.tree import Tree, tree_map


class Uploader:
    """Copies to one device; on CUDA in a stream of its own, so that no kernel waits for a copy that it does not use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _side_stream(device)

    @property
    def wants_pinned(self) -> bool:
        """Whether copies are faster from page-locked memory."""
        return self._stream is not None

    def upload(self, tree: Tree) -> Tree:
        """Copies a tree of tensors; waits until it is there, with kernels running on. From any thread."""
        if self._stream is None:
            return tree_map(lambda leaf: leaf.to(self._device), tree)
        with torch.cuda.stream(self._stream):
            copies = tree_map(lambda leaf: leaf.to(self._device, non_blocking=True), tree)
        self._stream.synchronize()
        tree_map(self._hold, copies)
        return copies

    def _hold(self, leaf: Tensor) -> None:
        """Keeps the memory from being reused by the next copy while kernels may still read it."""
        leaf.record_stream(torch.cuda.default_stream(self._device))


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch does not annotate it.
