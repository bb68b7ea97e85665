"""Makes batches of what was read: unpacked at once where that fits, else pass by pass.

half-packed fragments ─▶ what is small ──────────────────────────┐
          │                                                      ├─▶ batch, on the device
          ├─ all of it fits in `decoded_bytes` ─▶ unpack, stack ─┤
          └─ else ─▶ unpacker, asked for the rows of each pass ──┘
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from minefleet.codec import HalfPacked
from minefleet_learner.batch import Batch, Name, collate_steps, filled, place, width_of
from minefleet_learner.large import stack
from minefleet_learner.unpacking import Unpacker
from minefleet_learner.uploading import Uploader


class Collator:
    """Makes batches, and has the threads that unpack for them."""

    def __init__(self, device: torch.device, *, decoded_bytes: int, threads: int) -> None:
        """Starts nothing yet.

        Args:
            device: Where batches are used.
            decoded_bytes: What a batch may keep of observations and recurrent states once they are unpacked.
            threads: That unpack.
        """
        self._decoded_bytes = decoded_bytes
        self._uploader = Uploader(device)
        self._count = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="unpacker")

    def collate(self, named: Sequence[tuple[Name, HalfPacked]]) -> Batch:
        """Pads fragments to one length.

        Raises:
            RejectedError: If a fragment lacks the observation after a cut.
        """
        rows = [place(name, half.steps, half) for name, half in named]
        row_bytes, width = [half.large_bytes for _, half in named], width_of(rows)
        batch = collate_steps([name for name, _ in named], rows)
        if len(rows) * max(row_bytes) <= self._decoded_bytes:  # Rows are padded to the longest.
            large = stack(rows, width, pinned=self._uploader.wants_pinned, spread=self._threads.map)
            return filled(batch, large).sent(self._uploader.upload)
        unpacker = Unpacker(
            rows,
            row_bytes=row_bytes,
            width=width,
            kept_bytes=self._decoded_bytes,
            uploader=self._uploader,
            threads=self._threads,
            ahead=self._count,
        )
        return replace(batch.sent(self._uploader.upload), unpacker=unpacker)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(cancel_futures=True)
