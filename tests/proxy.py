"""A TCP proxy that does to connections what networks do: delay, throttle, swallow, reset."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Literal

Direction = Literal["up", "down"]
"""`up` goes to the server, `down` comes back from it."""

BLOCK_BYTES = 2**16
BLOCKS_AHEAD = 8
"""Blocks of a connection that are under way at once; bounds memory, and with it back-pressure."""


class Proxy:
    """Relays connections to one server. Its attributes may be changed at any time."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.delay_s = 0.0
        """Latency of each direction."""
        self.bytes_per_s = 0.0
        """Rate of each direction of a connection; 0 is unlimited."""
        self.reset_after_bytes = 0
        """A connection is reset once so many bytes have gone up; 0 never."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._open: dict[Direction, asyncio.Event] = {}
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hold(self, *directions: Direction) -> None:
        """Lets nothing through any more and closes nothing: a partition."""
        self._do(self._set(directions, passing=False))

    def resume(self) -> None:
        """Lets all through again, what was held first."""
        self._do(self._set(("up", "down"), passing=True))

    def reset(self) -> None:
        """Resets all connections; what was under way is lost."""
        self._do(self._reset())

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        for direction in ("up", "down"):
            self._open[direction] = asyncio.Event()
            self._open[direction].set()
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._server.close()
        await self._reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set(self, directions: tuple[Direction, ...], *, passing: bool) -> None:
        for direction in directions:
            if passing:
                self._open[direction].set()
            else:
                self._open[direction].clear()

    async def _reset(self) -> None:
        for writer in list(self._writers):
            _abort(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        ends = {writer}
        self._writers |= ends
        try:
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
            ends.add(server_writer)
            self._writers |= ends
            await asyncio.gather(
                self._pump("up", reader, server_writer, ends), self._pump("down", server_reader, writer, ends)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in ends:
                _abort(end)
            self._writers -= ends

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: set[asyncio.StreamWriter],
    ) -> None:
        blocks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(BLOCKS_AHEAD)
        delivery = asyncio.ensure_future(self._deliver(direction, blocks, writer, ends))
        try:
            while block := await reader.read(BLOCK_BYTES):
                await blocks.put((self._loop.time() + self.delay_s, block))
            await blocks.put((self._loop.time() + self.delay_s, b""))
            await delivery
        finally:
            delivery.cancel()
            for end in ends:
                _abort(end)

    async def _deliver(
        self,
        direction: Direction,
        blocks: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        ends: set[asyncio.StreamWriter],
    ) -> None:
        passed_bytes = 0
        while True:
            due, block = await blocks.get()
            await asyncio.sleep(due - self._loop.time())
            if self.bytes_per_s:
                await asyncio.sleep(len(block) / self.bytes_per_s)
            await self._open[direction].wait()
            if not block:
                return
            passed_bytes += len(block)
            if direction == "up" and 0 < self.reset_after_bytes <= passed_bytes:
                for end in ends:
                    _abort(end)
                return
            writer.write(block)
            await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
