"""Copies tensors off the device into memory that is used again.

Memory that was never touched costs more than the copy: a page fault per page, on some machines tens of times as much.
One call copies all tensors, so that a busy thread beside it takes the interpreter's lock once at most.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64
"""Of each array, in bytes."""

Layout: TypeAlias = tuple[tuple[str, torch.dtype, torch.Size, torch.device], ...]
"""Name, dtype, shape and device of each tensor."""


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """The place of an array in a block."""

    start: int
    end: int
    dtype: np.dtype[Any]
    shape: torch.Size


class Copier:
    """Copies named tensors. One thread copies; any thread may drop the arrays."""

    def __init__(self) -> None:
        self._layout: Layout = ()
        self._places: list[BlockLocation] = []
        self._idle: list[Tensor] = []

    def reserve(self, tensors: Mapping[str, Tensor], copies: int) -> None:
        """Touches the memory of so many copies, so that none of them waits for it."""
        held = [self.copy(tensors) for _ in range(copies)]
        held.clear()

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        """Returns the tensors as arrays of their own, complete when this returns.

        Their memory is used again when nobody holds any of them.
        """
        layout = tuple((name, tensor.dtype, tensor.shape, tensor.device) for name, tensor in tensors.items())
        if layout != self._layout:
            self._layout, self._places, self._idle = layout, _places(tensors), []
        if not tensors:
            return {}
        arrays = self._take_block()
        torch._foreach_copy_([torch.from_numpy(array) for array in arrays], [*tensors.values()], non_blocking=True)
        for device in self._gpus:
            torch.cuda.current_stream(device).synchronize()
        return dict(zip(tensors, arrays, strict=True))

    @property
    def _gpus(self) -> set[torch.device]:
        return {device for *_, device in self._layout if device.type == "cuda"}

    def _take_block(self) -> list[NDArray[Any]]:
        """Arrays on a block that comes back when the last of them is gone: `whole` is the base of all."""
        block = self._idle.pop() if self._idle else self._allocate()
        whole: NDArray[np.uint8] = block.numpy()
        weakref.finalize(whole, self._idle.append, block)
        return [whole[place.start : place.end].view(place.dtype).reshape(place.shape) for place in self._places]

    def _allocate(self) -> Tensor:
        """Memory for a copy: pinned for a GPU, which then writes it without a detour; else in NumPy's huge pages."""
        size_bytes = self._places[-1].end
        if self._gpus:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        return torch.from_numpy(np.empty(size_bytes, np.uint8))


def _places(tensors: Mapping[str, Tensor]) -> list[BlockLocation]:
    places, start = [], 0
    for tensor in tensors.values():
        dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        places.append(BlockLocation(start, start + tensor.nbytes, dtype, tensor.shape))
        start += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return places
