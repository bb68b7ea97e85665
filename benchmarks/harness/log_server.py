"""A bare gRPC server that writes what comes to log files, and sends them back. No checks, no fsync, no index.

    python -m harness.log_server DIR

Prints its address and serves until its standard input ends. `Append` is a client stream whose first message names the
log; `Read` is a server stream of the log that the request names, in messages of `PIECE_BYTES`.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet_runtime.grpc_server.serve import SERVER_OPTIONS

SERVICE = "benchmark.Log"
HANDLERS = 32


def as_is(message: bytes) -> bytes:
    """Serialises bytes, and the other way round."""
    return message


def main() -> None:
    directory = Path(sys.argv[1])

    def append(messages: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        with (directory / next(messages).decode()).open("wb", buffering=0) as log:
            for message in messages:
                log.write(message)
        return b""

    def read(name: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        with (directory / name.decode()).open("rb", buffering=0) as log:
            while message := log.read(PIECE_BYTES):
                yield message

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Append": grpc.stream_unary_rpc_method_handler(append, as_is, as_is),
        "Read": grpc.unary_stream_rpc_method_handler(read, as_is, as_is),
    }
    server = grpc.server(ThreadPoolExecutor(HANDLERS), options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
