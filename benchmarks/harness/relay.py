"""Relays TCP connections with a delay in each direction: `relay.py HOST:PORT SECONDS`. Ends with its standard input.

Threads that sleep are exact to some 0.1 ms, which an event loop is not: its timers are whole milliseconds.
"""

import os
import socket
import sys
import threading
import time
from queue import SimpleQueue

BLOCK_BYTES = 2**18


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    delay_s = float(sys.argv[2])
    server = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{server.getsockname()[1]}", flush=True)
    threading.Thread(target=accept, args=(server, (host, int(port)), delay_s), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def accept(server: socket.socket, target: tuple[str, int], delay_s: float) -> None:
    while True:
        near, far = server.accept()[0], socket.create_connection(target)
        for source, sink in ((near, far), (far, near)):
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            blocks = SimpleQueue[tuple[float, bytes]]()
            threading.Thread(target=receive, args=(source, blocks, delay_s), daemon=True).start()
            threading.Thread(target=deliver, args=(sink, blocks), daemon=True).start()


def receive(source: socket.socket, blocks: SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    block = b"-"
    while block:
        try:
            block = source.recv(BLOCK_BYTES)
        except OSError:
            block = b""
        blocks.put((time.monotonic() + delay_s, block))


def deliver(sink: socket.socket, blocks: SimpleQueue[tuple[float, bytes]]) -> None:
    try:
        while True:
            due_s, block = blocks.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not block:
                break
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # The other side has gone.


if __name__ == "__main__":
    main()
