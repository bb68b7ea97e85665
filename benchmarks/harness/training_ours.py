"""Our side of `benchmarks/learner.py`: the learner's feed and update, with packed fragments from memory.

    python -m harness.training_ours ITERATIONS DECODED_BYTES

The next iteration is verified, unpacked and collated while one is trained on, as in a run.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import count

import torch

from harness.training import CONFIG, FRAGMENTS, STEPS, fragments, make_policy, measure
from minefleet.rpc.codec import encode
from minefleet.rpc.replay_types import Order, Packed
from minefleet.v1 import fragment_pb2
from minefleet.v1.fragment_pb2 import ChunkName
from minefleet.v1.replay_service_pb2 import LeasedChunk
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.collate import Collator
from minefleet_learner.data.prefetcher import Prefetcher
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater
from minefleet_runtime.process_setup import keep_freed_memory


class InMemory:
    """Has the same fragments for every lease."""

    def __init__(self, packed: Sequence[Packed]) -> None:
        self._packed = {header.name.stream: (header, payload) for header, payload in packed}

    def lease(
        self, number: int, *, use_version: int, wait_s: float, order: Order, settings: str = ""
    ) -> list[LeasedChunk]:
        """All of them."""
        del number, use_version, wait_s, order, settings
        return [
            LeasedChunk(
                name=ChunkName(stream=stream), fragments=1, steps=STEPS, payload_bytes=len(payload), oldest_version=1
            )
            for stream, (_, payload) in self._packed.items()
        ]

    def read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[Packed]:
        """Their bytes."""
        del number
        return (self._packed[chunk.name.stream] for chunk in chunks)

    def ack(self, number: int) -> int:
        """Forgets nothing."""
        del number
        return 0

    def release(self, number: int) -> None:
        """Likewise."""


def main() -> None:
    iterations, decode_cache_bytes = map(int, sys.argv[1:])
    keep_freed_memory()
    policy, numbers = make_policy(), count()
    updater = Updater(policy, build_optimizer(policy, CONFIG), CONFIG, None)
    packed = [
        encode(fragment_pb2.FragmentHeader(name=fragment_pb2.FragmentName(stream=f"s{index}")), fragment)
        for index, fragment in enumerate(fragments())
    ]
    assert len(packed) == FRAGMENTS
    prefetcher = Prefetcher(
        InMemory(packed),
        order="least_used",
        readers=CONFIG.num_readers,
        collator=Collator(
            torch.device("cpu"),
            decode_cache_bytes=decode_cache_bytes // 2,
            threads=CONFIG.num_readers,
            least_rows=CONFIG.batch_size_per_gpu,
        ),
        burn_in=0,
        may_be_empty=False,
        ahead=True,
        stopping=threading.Event(),
        report=lambda _: None,
    )

    def iterate() -> None:
        number = next(numbers)
        lease, batch = prefetcher.take(number)
        updater.update(batch, rates(CONFIG, number, 0.0))
        prefetcher.ack(lease)

    measure(iterate, iterations)
    prefetcher.end()
    prefetcher.close()


if __name__ == "__main__":
    main()
