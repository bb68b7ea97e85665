"""Keeps the pictures that slots showed last before their environments failed."""

import zlib

import numpy as np

from minefleet.core.errors import NotFoundError
from minefleet.runs.run import Run
from minefleet_actor.pool import Pool
from minefleet_actor.video.frame_source import can_film, make_lens
from minefleet_actor.video.picture import Frame, to_rgb

MAX_BYTES = 32 * 2**20
"""Packed bytes that are kept; the oldest pictures leave first."""


class FailurePictures:
    """One picture at most of each slot. The loop keeps them, and threads of the server read them.

    Where environments render, only those slots have one that did so when they failed: rendering always would cost.
    """

    def __init__(self, run: Run, pool: Pool) -> None:
        self._lens = make_lens(run, pool) if can_film(run) else None
        self._must_render = run.frame_shape is not None
        self._pool = pool
        self._packed: dict[int, tuple[tuple[int, ...], bytes]] = {}
        """Slot -> shape and packed pixels, the oldest first."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._packed

    def keep(self, slot: int) -> None:
        """Keeps the picture that a slot shows, which has just failed, instead of that of its last failure."""
        self._packed.pop(slot, None)
        if self._lens is None or (self._must_render and not self._pool.is_filmed(slot)):
            return
        picture = np.ascontiguousarray(to_rgb(self._lens(slot)))
        if not picture.any():
            return  # It has shown nothing yet.
        self._packed[slot] = picture.shape, zlib.compress(picture.data, 1)
        while sum(len(packed) for _, packed in self._packed.values()) > MAX_BYTES:
            del self._packed[next(iter(self._packed))]

    def picture(self, slot: int) -> Frame:
        """The picture of a slot, [H, W, 3] uint8.

        Raises:
            NotFoundError: If there is none.
        """
        shape, packed = self._packed.get(slot, ((), b""))
        if not packed:
            raise NotFoundError(f"slot {slot} has left no picture from before a failure")
        return np.frombuffer(zlib.decompress(packed), np.uint8).reshape(shape)
