"""Reverb's side of `benchmarks/replay.py`: one client process on one server process. Prints a JSON line of figures.

    python reverb_replay.py {crafter,random} FRAGMENTS [--threads N] [--append-only] [--check-all]

Written in both documented ways: `insert` of whole fragments, and a trajectory writer step by step. What was written in
either way is sampled in both documented ways: `Client.sample` and `TrajectoryDataset`.
"""

import os

# Before TensorFlow is imported, in the server's process too.
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
import reverb
import tensorflow as tf

from harness.fragments import KINDS, Arrays, load, name_of, total_bytes

UNCONFIRMED = 4
"""Items that a trajectory writer has under way."""
IN_FLIGHT = 8
"""Samples that each worker of a dataset asks for ahead."""

Sampler = Callable[[int], Iterator[Arrays]]


def main() -> None:
    arguments = parse()
    fragments = load(arguments.kind, arguments.fragments)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, 2 * len(fragments)), daemon=True)
    server.start()
    address = f"localhost:{ours.recv()}"
    with ThreadPoolExecutor(arguments.threads) as pool:
        figures = {"append": append_in_all_ways(address, fragments, pool, arguments.threads)}
    if not arguments.append_only:
        figures["sample"] = sample_in_all_ways(address, fragments, arguments.check_all)
    print(json.dumps(figures))
    ours.send("stop")
    server.join()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("fragments", type=int)
    parser.add_argument("--threads", type=int, default=1, help="that write")
    parser.add_argument("--append-only", action="store_true")
    parser.add_argument("--check-all", action="store_true", help="warm up until every fragment was seen and compared")
    return parser.parse_args()


def serve(client: Connection, capacity: int) -> None:
    """Serves a table for each way of writing until told to stop, or the client dies."""
    tables = [
        reverb.Table(
            name,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            max_times_sampled=0,
        )
        for name in ("inserted", "written")
    ]
    server = reverb.Server(tables=tables)
    client.send(server.port)
    with suppress(EOFError):
        client.recv()
    server.stop()


def append_in_all_ways(
    address: str, fragments: list[Arrays], pool: ThreadPoolExecutor, threads: int
) -> dict[str, float]:
    """GB/s of decoded arrays, by way."""
    figures = {}
    for name, append in (("Reverb insert", insert), ("Reverb writer", write)):
        writers = [reverb.Client(address) for _ in range(threads)]
        shares = [fragments[start::threads] for start in range(threads)]
        list(pool.map(append, writers, [share[: max(1, len(share) // 20)] for share in shares]))
        for writer in writers:
            writer.reset("inserted" if append is insert else "written")
        began = time.monotonic()
        list(pool.map(append, writers, shares))
        figures[name] = total_bytes(fragments) / (time.monotonic() - began) / 1e9
    return figures


def insert(client: reverb.Client, fragments: list[Arrays]) -> None:
    """Appends whole fragments."""
    for fragment in fragments:
        client.insert(list(fragment.values()), {"inserted": 1.0})


def write(client: reverb.Client, fragments: list[Arrays]) -> None:
    """Appends step by step, and makes an item of each fragment."""
    writer = client.trajectory_writer(num_keep_alive_refs=len(fragments[0]["reward"]))
    for fragment in fragments:
        stepwise = {name: array for name, array in fragment.items() if not name.startswith("cut_")}
        rows = list(zip(*stepwise.values(), strict=True))
        for row in rows[:-1]:
            writer.append(dict(zip(stepwise, row, strict=True)))
        last = {name: fragment[name][0] for name in ("cut_index", "cut_obs")}
        writer.append(dict(zip(stepwise, rows[-1], strict=True)) | last)
        item = {name: writer.history[name][-len(array) :] for name, array in fragment.items()}
        writer.create_item("written", 1.0, item)
        writer.flush(block_until_num_items=UNCONFIRMED)
    writer.flush()
    writer.close()


def sample_in_all_ways(address: str, fragments: list[Arrays], check_all: bool) -> dict[str, float]:
    """GB/s of decoded arrays, by way. Raises ValueError if a sampled array differs from the one appended."""
    inserted = {name: (1, *array.shape) for name, array in fragments[0].items()}
    written = {name: array.shape for name, array in fragments[0].items()}
    ways: dict[str, Sampler] = {}
    for table, shapes in (("inserted", inserted), ("written", written)):
        ways[f"sample {table}"] = client_sampler(address, table, fragments[0])
        ways[f"dataset {table}"] = dataset_sampler(address, table, fragments[0], shapes)
    figures = {}
    for way, sampler in ways.items():
        warm_up(sampler, fragments, check_all)
        began = time.monotonic()
        count = sum(1 for _ in sampler(len(fragments)))
        figures[f"Reverb {way}"] = total_bytes(fragments) / (time.monotonic() - began) / 1e9
        assert count == len(fragments)
    return figures


def client_sampler(address: str, table: str, example: Arrays) -> Sampler:
    """Samples with `Client.sample`; what was not written by name comes in the order of insertion, else by name."""
    client = reverb.Client(address)
    names = list(example) if table == "inserted" else sorted(example)

    def sample(count: int) -> Iterator[Arrays]:
        for one in client.sample(table, count, emit_timesteps=False):
            yield dict(zip(names, one.data, strict=True))

    return sample


def dataset_sampler(address: str, table: str, example: Arrays, shapes: dict[str, tuple[int, ...]]) -> Sampler:
    """Samples with `TrajectoryDataset`."""
    names = list(example) if table == "inserted" else sorted(example)
    dataset = reverb.TrajectoryDataset(
        address,
        table,
        dtypes=[example[name].dtype for name in names],
        shapes=[tf.TensorShape(shapes[name]) for name in names],
        max_in_flight_samples_per_worker=IN_FLIGHT,
    )

    def sample(count: int) -> Iterator[Arrays]:
        for one in dataset.take(count).as_numpy_iterator():
            yield dict(zip(names, one.data, strict=True))

    return sample


def warm_up(sampler: Sampler, fragments: list[Arrays], check_all: bool) -> None:
    """Samples and compares a quarter of the fragments, or until every one was seen: sampling is uniform."""
    missing = {name_of(fragment): fragment for fragment in fragments}
    if not check_all:
        compare(sampler, dict(missing), max(1, len(fragments) // 4))
        return
    while missing:
        missing = compare(sampler, missing, len(fragments))


def compare(sampler: Sampler, missing: dict[bytes, Arrays], count: int) -> dict[bytes, Arrays]:
    """Samples so many and compares those that are new; returns what has not been seen."""
    for sampled in sampler(count):
        original = missing.pop(name_of(sampled), None)
        if original is None:
            continue
        for name, array in original.items():
            if not np.array_equal(sampled[name].reshape(array.shape), array):
                raise ValueError(f"array {name} of a sampled fragment differs from the one appended")
    return missing


if __name__ == "__main__":
    main()
