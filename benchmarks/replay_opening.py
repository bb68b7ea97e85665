"""Replay: how long a store of many small fragments takes to open, from the start of the process until it answers.

python benchmarks/replay_opening.py [--fragments 1000000] [--rounds 3]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from minefleet.config import EnvConfig, FleetConfig, ReplayBufferConfig, RolloutConfig, ServicesConfig, TrainConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.launch.ports import claim
from minefleet.rpc.codec import checksum
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Run
from minefleet.v1 import fragment_pb2, status_service_pb2, tensor_pb2
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.engine.open_replay import open_replay
from minefleet_replay.state.deduplication import WINDOW, StreamNames
from minefleet_replay.state.ledger_totals import Ledger, LedgerAccount
from minefleet_replay.state.limits import limits_of
from minefleet_replay.storage.row_codec import FragmentRow, names_row, number_key

LIMIT_S = 20.0
STREAMS = 1000
BATCH = 1000
PAYLOAD = b"payload" * 16
RUN_ID = "run-1"
PATIENCE_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fragments", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch), max_chunks=2 * arguments.fragments, max_reuse=2)
        fill(run, arguments.fragments)
        seconds = []
        for number in range(1, arguments.rounds + 1):
            began = time.monotonic()
            with running(run) as process:
                seconds.append(time.monotonic() - began)
                per_fragment = resident_bytes(process.pid) / arguments.fragments
                print(
                    f"round {number}: {seconds[-1]:.2f} s, {per_fragment:.0f} bytes of memory per fragment", flush=True
                )
    ours = statistics.median(seconds)
    line = {"benchmark": "replay_opening", "case": case_of(arguments.fragments), "unit": "s", "ours": ours}
    print(json.dumps(line | {"peer": None, "limit": LIMIT_S, "ratio_peer": None, "ratio_limit": LIMIT_S / ours}))


def case_of(fragments: int) -> str:
    """1000000 as 1M."""
    return f"{fragments // 10**6}M" if fragments % 10**6 == 0 else str(fragments)


def make_run(directory: Path, **replay: float) -> Run:
    """Writes a run whose replay listens on free ports of this machine."""
    config = FleetConfig(
        env=EnvConfig(id="CartPole-v1"),
        train_config=TrainConfig(batch_size_per_gpu=64),
        rollout_config=RolloutConfig(replay_buffer_config=ReplayBufferConfig(**replay)),  # type: ignore[arg-type]
        services=claim(ServicesConfig(drain_s=30.0)),
    )
    schema = Schema(
        obs=Leaf(kind="box", shape=(4,), dtype="float32"),
        action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
    )
    run = Run(directory=directory, config=config, schema=schema, architecture="abc")
    run.write()
    return run


@contextmanager
def running(run: Run) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs the replay of a run; begins when it answers, and stops it in order."""
    command = [sys.executable, "-m", "minefleet_replay", "--run-dir", str(run.directory), "--log-level", "WARNING"]
    process = subprocess.Popen(command)
    try:
        with client_of(run) as client:
            client.describe()
        yield process
        process.terminate()
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def client_of(run: Run, version: int = 1) -> ReplayClient:
    """A learner's client."""
    return ReplayClient(
        run.config.services.replay[0].address,
        identity=run.identity(status_service_pb2.ROLE_LEARNER),
        position=Position(run_id=RUN_ID, epoch=1, version=version, resumed_version=0, first_version=1),
        patience_s=PATIENCE_S,
    )


def header_of(run: Run, stream: str, sequence: int, payload: bytes, version: int = 1) -> fragment_pb2.FragmentHeader:
    """A header that replay accepts."""
    header = fragment_pb2.FragmentHeader(
        run_id=RUN_ID,
        name=fragment_pb2.FragmentName(stream=stream, sequence=sequence),
        length=1,
        oldest_version=version,
        newest_version=version,
        checksum=checksum(payload),
        payload_bytes=len(payload),
        raw_bytes=len(payload),
        schema_fingerprint=run.schema.fingerprint,
        chunk=sequence,
        chunk_start=sequence,
        closes_chunk=True,
    )
    header.tensors.add(
        name="recurrent_state",
        dtype=tensor_pb2.DTYPE_UINT8,
        shape=[len(payload)],
        codec=tensor_pb2.CODEC_NONE,
        packed_bytes=len(payload),
    )
    return header


def ledger_of(fragments: int) -> Ledger:
    """So many fragments of one step, all live."""
    account = LedgerAccount(appended=fragments, live=fragments)
    return Ledger(fragments=account, steps=account)


def fill(run: Run, fragments: int) -> None:
    """Writes the rows of so many fragments, as if as many streams as there are had appended them in turn."""
    replay = open_replay(run.replay, limits_of(run), ReplayMetrics(CollectorRegistry()))
    replay.bind(RUN_ID)
    keeper = replay.transactions
    for start in range(0, fragments, BATCH):
        change = keeper.change()
        for number in range(start, min(start + BATCH, fragments)):
            sequence, stream = divmod(number, STREAMS)
            header = header_of(run, stream_of(stream), sequence, PAYLOAD)
            change.put(
                "meta", number_key(number), FragmentRow.of(number, header, keeper.payloads.write([PAYLOAD])).to_row()
            )
        change.ledger = ledger_of(start + BATCH)
        keeper.commit(change)
        keeper.sync(keeper.store.written)
    change = keeper.change()
    for stream in range(min(STREAMS, fragments)):
        sequences = range(len(range(stream, fragments, STREAMS)))
        known = tuple((sequence, checksum(PAYLOAD)) for sequence in sequences[-WINDOW:])
        names = StreamNames(fragments=((0, len(sequences)),), chunks=((0, len(sequences)),), checksums=known)
        change.put("names", stream_of(stream).encode(), names_row(names))
    change.ledger = ledger_of(fragments)
    keeper.commit(change)
    replay.close()


def stream_of(number: int) -> str:
    return f"actor-{number}-1f2e3d4c/{number}"


def resident_bytes(pid: int) -> int:
    """Memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
