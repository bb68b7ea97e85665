"""Our side of `benchmarks/replay.py`: one client process on one replay process. Prints a JSON line of figures.

    python -m harness.replay_ours {crafter,random} FRAGMENTS [--threads N] [--append-only]

The client does what an actor does, with `--threads` shippers that each have a connection of their own, and then what a
learner does: Lease, Read, decode, Ack, each reader with a lease of its own, so that one is waited for while others are
read. Nothing is evicted: the limits leave room for all.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count

import numpy as np

from harness.fragments import KINDS, Arrays, load, total_bytes
from harness.replaying import LEARNER, Server, make_run, scratch, serving
from minefleet.config import ReplayBufferConfig
from minefleet.core.fragment import Fragment
from minefleet.rpc.codec import decode
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Packed
from minefleet.v1 import fragment_pb2, replay_service_pb2, status_service_pb2
from minefleet_actor.replay_io.uploader import FragmentUploader
from minefleet_runtime.process_setup import keep_freed_memory

PER_LEASE = {"crafter": 128, "random": 16}
"""Fragments of one iteration: 103 and 202 MB."""
READERS = 3
"""As many leases may be open and one to spare."""
PASSES = 2
"""Passes over all fragments before the time counts: leases take the least used first, those of the warm-up, too."""
WARM_UP = "warm-up"
TIMED = "timed"


def main() -> None:
    arguments = parse()
    keep_freed_memory()
    fragments = load(arguments.kind, arguments.fragments)
    with scratch() as directory:
        per_lease = min(PER_LEASE[arguments.kind], len(fragments))
        buffer = ReplayBufferConfig(
            max_chunks=2 * len(fragments),
            max_bytes=8 * total_bytes(fragments),
            max_reuse=1_000_000,
            pacing="off",
            compression=arguments.compression,
        )
        steps, *frame = fragments[0]["obs"].shape
        run = make_run(directory, tuple(frame), buffer, per_lease, steps)
        with serving(run) as server:
            way = f"ours {arguments.compression}"
            figures = {"append": {way: measure_append(server, fragments, arguments.threads)}}
            if not arguments.append_only:
                figures["sample"] = {way: measure_sample(server, fragments, arguments.threads, per_lease)}
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("fragments", type=int)
    parser.add_argument("--threads", type=int, default=1, help="that append")
    parser.add_argument("--append-only", action="store_true")
    parser.add_argument("--compression", default="zstd", choices=("zstd", "lz4", "none"))
    return parser.parse_args()


def measure_append(server: Server, fragments: list[Arrays], threads: int) -> float:
    """GB/s of decoded arrays, from the first encoding to the last answer."""
    clients = [server.client(status_service_pb2.ROLE_ACTOR, LEARNER) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        ship_all(pool, server, clients, fragments[: max(threads, len(fragments) // 20)], WARM_UP)
        began = time.monotonic()
        ship_all(pool, server, clients, fragments, TIMED)
        took_s = time.monotonic() - began
    for client in clients:
        client.close()
    return total_bytes(fragments) / took_s / 1e9


def ship_all(pool: Executor, server: Server, clients: list[ReplayClient], fragments: list[Arrays], prefix: str) -> None:
    """Has every client ship its share: fragment k is sequence k // threads of stream k % threads."""
    threads = len(clients)

    def ship(number: int) -> None:
        shipper = FragmentUploader(
            clients[number],
            capacity=len(fragments),
            schema_fingerprint=server.run.schema.fingerprint,
            compression=server.run.config.rollout_config.replay_buffer_config.compression,
            state_dtype=server.run.config.rollout_config.state_dtype,
            progress=lambda: replay_service_pb2.ActorProgress(actor=f"{prefix}-{number}"),
            sent=lambda: None,
        )
        for sequence, arrays in enumerate(fragments[number::threads]):
            fragment = Fragment(**arrays, recurrent_state={})
            header = fragment_pb2.FragmentHeader(
                name=fragment_pb2.FragmentName(stream=f"{prefix}-{number}", sequence=sequence),
                chunk=sequence,
                chunk_start=sequence,
                closes_chunk=True,
            )
            shipper.send(header, fragment)
        shipper.flush()

    list(pool.map(ship, range(threads)))


def measure_sample(server: Server, fragments: list[Arrays], threads: int, per_lease: int) -> float:
    """GB/s of decoded arrays, from the first lease to the last fragment decoded, after a pass that compares all."""
    client = server.client(status_service_pb2.ROLE_LEARNER, LEARNER)
    numbers, missing = count(1), dict(enumerate(fragments))
    steps = per_lease * len(fragments[0]["reward"])

    def compare(packed: Packed, fragment: Fragment) -> None:
        prefix, _, stream = packed[0].name.stream.rpartition("-")
        original = missing.pop(int(stream) + threads * packed[0].name.sequence, None) if prefix == TIMED else None
        for name, array in (original or {}).items():
            if not np.array_equal(getattr(fragment, name), array):
                raise ValueError(f"array {name} of {packed[0].name} differs from the one appended")

    for _ in range(PASSES * len(fragments) // per_lease):
        take(client, next(numbers), steps, compare)
    if missing:
        raise ValueError(f"{len(missing)} of {len(fragments)} appended fragments were never sampled")
    leases = max(READERS, 2 * len(fragments) // per_lease)
    with ThreadPoolExecutor(READERS) as pool:
        began = time.monotonic()
        taken_bytes = sum(pool.map(lambda _: take(client, next(numbers), steps), range(leases)))
        took_s = time.monotonic() - began
    client.close()
    return taken_bytes / took_s / 1e9


def take(
    client: ReplayClient,
    number: int,
    steps: int,
    use: Callable[[Packed, Fragment], None] = lambda packed, fragment: None,
) -> int:
    """Leases, reads, decodes and acks fragments; returns the bytes of their arrays."""
    assert client.lease(number, steps=steps, use_version=1, wait_s=10.0).chunks
    taken_bytes = 0
    for packed in client.read(number):
        use(packed, decode(*packed))
        taken_bytes += packed[0].raw_bytes
    client.ack(number)
    return taken_bytes


if __name__ == "__main__":
    main()
