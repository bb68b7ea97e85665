"""Makes batches of what was read: unpacked at once where that fits, else pool by pool.

half-packed fragments ─▶ what is small ───────────────────────────────┐
          │                                                           ├─▶ batch, on the device
          ├─ all of it fits in `decode_cache_bytes` ─▶ unpack, stack ─┤
          └─ else ─▶ unpacker, of pools of fragments that fit ────────┘
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from minefleet.rpc.codec import HalfPacked
from minefleet_learner.data.batch import Batch, collate_steps, filled
from minefleet_learner.data.decode_ahead import DecodeAhead
from minefleet_learner.data.to_device import Uploader
from minefleet_learner.data.unpacked_observations import stack

logger = logging.getLogger(__name__)

POOLS = 2
"""In memory at a time: the one in training, and the next."""


class Collator:
    """Makes batches, and has the threads that unpack for them."""

    def __init__(self, device: torch.device, *, decode_cache_bytes: int, threads: int, least_rows: int = 1) -> None:
        """Starts nothing yet.

        Args:
            device: Where batches are used.
            decode_cache_bytes: What a batch may keep of observations and recurrent states once they are unpacked.
            threads: That unpack.
            least_rows: Fragments of a pool at least, whatever they take.
        """
        self._device = device
        self._decode_cache_bytes = decode_cache_bytes
        self._uploader = Uploader(device)
        self._least_rows = least_rows
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="unpacker")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="next-pool")
        self._has_logged = False

    def collate(self, fragments: Sequence[HalfPacked]) -> Batch:
        """Pads fragments to one length.

        Raises:
            RejectedError: If a fragment lacks the observation after a cut.
        """
        batch = collate_steps([(half.name, half.steps) for half in fragments])
        rows, width = [(half.steps, half.unpack) for half in fragments], batch.seen_mask.shape[1]
        row_bytes = [half.large_bytes for half in fragments]
        if len(rows) * max(row_bytes) <= self._decode_cache_bytes:  # Rows are padded to the longest.
            large = stack(rows, width, pinned=self._uploader.wants_pinned, spread=self._threads.map)
            return filled(batch, large).sent(self._uploader.upload)
        rows_per_pool = max(self._least_rows, self._decode_cache_bytes // POOLS // max(row_bytes))
        self._log_unpacking(len(rows), rows_per_pool, sum(row_bytes))
        unpacker = DecodeAhead(
            rows,
            width=width,
            rows_per_pool=rows_per_pool,
            device=self._device,
            uploader=self._uploader,
            threads=self._threads,
            ahead=self._ahead,
        )
        return replace(batch.sent(self._uploader.upload), unpacker=unpacker)

    def _log_unpacking(self, rows: int, rows_per_pool: int, unpacked_bytes: int) -> None:
        """Logs once what is traded for memory."""
        if not self._has_logged:
            logger.warning(
                "the observations of an iteration take %.0f MB unpacked, more than train_config.decode_cache_bytes "
                "keeps: minibatches are drawn from %d of its %d fragments at a time",
                unpacked_bytes / 1e6,
                min(rows, rows_per_pool),
                rows,
            )
        self._has_logged = True

    def close(self) -> None:
        """Ends the threads."""
        self._ahead.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)
