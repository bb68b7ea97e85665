"""The limit of `benchmarks/replay.py`: the same bytes over bare gRPC streams to and from log files. Prints a JSON line.

    python -m harness.replay_limit {crafter,random} FRAGMENTS [--threads N] [--append-only]

The payloads are packed beforehand and cut into messages of 1 MiB. Each of `--threads` threads sends its share over a
connection and a client stream of its own; the server writes each message to the stream's log. One server stream after
the other sends the logs back. For orientation, this process also writes the same messages to a file by itself.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from harness.fragments import KINDS, Arrays, load, total_bytes
from harness.log_server import SERVICE, as_is
from harness.replaying import scratch
from minefleet.core.fragment import Fragment
from minefleet.rpc.channel import connect
from minefleet.rpc.codec import encode
from minefleet.rpc.message_pieces import pieces
from minefleet.v1 import fragment_pb2


def main() -> None:
    arguments = parse()
    fragments = load(arguments.kind, arguments.fragments)
    messages = list(pieces(b"".join(pack(fragment) for fragment in fragments)))
    shares = [messages[start :: arguments.threads] for start in range(arguments.threads)]
    gigabytes = total_bytes(fragments) / 1e9
    with scratch() as directory, ThreadPoolExecutor(arguments.threads) as pool, ExitStack() as stack:
        figures = {"append": {"file": gigabytes / write(directory / "file", messages)}}
        address = stack.enter_context(serving(directory))
        channels = [stack.enter_context(connect(address)) for _ in shares]
        append(pool, channels, [share[: 1 + len(share) // 20] for share in shares], "warm-up")
        figures["append"]["limit"] = gigabytes / append(pool, channels, shares, "timed")
        if not arguments.append_only:
            read(channels, "warm-up")
            figures["sample"] = {"limit": gigabytes / read(channels, "timed")}
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("fragments", type=int)
    parser.add_argument("--threads", type=int, default=1, help="that append")
    parser.add_argument("--append-only", action="store_true")
    return parser.parse_args()


def pack(arrays: Arrays) -> bytes:
    """The payload that ours sends."""
    fragment = Fragment(**arrays, recurrent_state={})
    return encode(fragment_pb2.FragmentHeader(), fragment)[1]


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Runs the log server until the block ends; yields its address."""
    command = [sys.executable, "-m", "harness.log_server", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def append(pool: Executor, channels: list[grpc.Channel], shares: list[list[bytes]], prefix: str) -> float:
    """Sends each share over its channel; returns the seconds from the first message to the last answer."""

    def send(number: int) -> None:
        call = channels[number].stream_unary(f"/{SERVICE}/Append", as_is, as_is)
        call(iter([f"{prefix}-{number}".encode(), *shares[number]]))

    began = time.monotonic()
    list(pool.map(send, range(len(channels))))
    return time.monotonic() - began


def read(channels: list[grpc.Channel], prefix: str) -> float:
    """Reads all logs, one after the other; returns the seconds that it took."""
    began = time.monotonic()
    for number, channel in enumerate(channels):
        call = channel.unary_stream(f"/{SERVICE}/Read", as_is, as_is)
        for _ in call(f"{prefix}-{number}".encode()):
            pass
    return time.monotonic() - began


def write(path: Path, messages: list[bytes]) -> float:
    """Writes the messages to a file; returns the seconds that it took."""
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for message in messages:
            file.write(message)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
