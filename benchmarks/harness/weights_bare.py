"""The limit of `benchmarks/weights.py`: bare gRPC streams of messages of 1 MiB that nobody looks at.

    python -m harness.weights_bare {sync,aio} DIR BYTES

Prints its address and serves until its standard input ends. `Upload` writes what comes to one file and syncs it before
it answers; like ours it keeps eight, since pages that were just freed are written faster than others. `Download` sends
so many bytes from memory.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc

from minefleet.rpc.message_pieces import PIECE_BYTES, pieces
from minefleet_runtime.grpc_server.serve import SERVER_OPTIONS
from minefleet_runtime.process_setup import keep_freed_memory

SERVICE = "benchmark.Bare"
UPLOAD = f"/{SERVICE}/Upload"
DOWNLOAD = f"/{SERVICE}/Download"
HANDLERS = 16
KEPT = 8


def as_is(message: bytes) -> bytes:
    """Serialises bytes, and the other way round."""
    return message


def main() -> None:
    kind, directory, size = sys.argv[1:]
    keep_freed_memory()
    messages = list(pieces(os.urandom(PIECE_BYTES) * (int(size) // PIECE_BYTES)))
    messages.append(os.urandom(int(size) % PIECE_BYTES))
    files = cycle(Path(directory) / f"upload-{number}" for number in range(KEPT))
    if kind == "sync":
        serve_sync(files, messages)
    else:
        asyncio.run(serve_aio(files, messages))


def serve_sync(files: Iterator[Path], messages: list[bytes]) -> None:
    def upload(requests: Iterator[bytes], _: object) -> bytes:
        with next(files).open("wb", buffering=0) as file:
            for request in requests:
                file.write(request)
            os.fsync(file.fileno())
        return b""

    def download(request: bytes, _: object) -> Iterator[bytes]:
        yield from messages

    server = grpc.server(ThreadPoolExecutor(HANDLERS), options=SERVER_OPTIONS)
    register(server, upload, download)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    announce(port)
    sys.stdin.read()
    server.stop(None).wait()


async def serve_aio(files: Iterator[Path], messages: list[bytes]) -> None:
    async def upload(requests: AsyncIterator[bytes], _: object) -> bytes:
        with next(files).open("wb", buffering=0) as file:
            async for request in requests:
                file.write(request)
            await asyncio.to_thread(os.fsync, file.fileno())
        return b""

    async def download(request: bytes, _: object) -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    server = grpc.aio.server(options=SERVER_OPTIONS)
    register(server, upload, download)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(port)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def register(server: grpc.Server | grpc.aio.Server, upload: Any, download: Any) -> None:
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Upload": grpc.stream_unary_rpc_method_handler(upload, as_is, as_is),
        "Download": grpc.unary_stream_rpc_method_handler(download, as_is, as_is),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))


def announce(port: int) -> None:
    print(json.dumps(f"127.0.0.1:{port}"), flush=True)


if __name__ == "__main__":
    main()
