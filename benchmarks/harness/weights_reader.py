"""A reader of `benchmarks/weights.py`: follows parameters as an actor does, or a bare server. Speaks JSON lines.

    python -m harness.weights_reader {ours,bare} ADDRESS

Ours fetches each version that is announced and answers with when it heard of it and when its tensors were there and
verified. Bare receives the bytes and drops them whenever it is asked, and answers with when it had all.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import grpc

from harness.weights_bare import DOWNLOAD, as_is
from minefleet.rpc.channel import connect
from minefleet.rpc.parameters_client import ParametersClient
from minefleet_runtime.process_setup import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("ours", "bare"))
    parser.add_argument("address")
    arguments = parser.parse_args()
    keep_freed_memory()
    sides: dict[str, Callable[[str], None]] = {"ours": follow, "bare": receive}
    sides[arguments.side](arguments.address)


def follow(address: str) -> None:
    client = ParametersClient(address, watcher=f"actor-{time.monotonic_ns()}")
    for info in client.watch():
        heard_s = time.monotonic()
        _, weights = client.fetch(info.version)
        say(version=info.version, heard_s=heard_s, done_s=time.monotonic(), tensors=len(weights))


def receive(address: str) -> None:
    with connect(address) as channel:
        download: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(DOWNLOAD, as_is, as_is)
        grpc.channel_ready_future(channel).result(10)
        say(ready=True)
        for _ in sys.stdin:
            received_bytes = sum(map(len, download(b"")))
            say(done_s=time.monotonic(), received_bytes=received_bytes)


def say(**answer: float) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
