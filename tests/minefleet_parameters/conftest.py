"""A parameters server in this process, on a free port, with its own event loop."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from minefleet.rpc.credentials import NOTHING
from minefleet.rpc.parameters_client import ParametersClient
from minefleet_parameters.metrics import ParametersMetrics
from minefleet_parameters.service import ParametersService, add_to_server
from minefleet_parameters.store import ParameterStore, open_store
from minefleet_runtime.grpc_server.access import Access
from minefleet_runtime.grpc_server.interceptors import AioRpcInterceptor
from minefleet_runtime.grpc_server.serve import SERVER_OPTIONS
from minefleet_runtime.metrics import RpcMetrics
from minefleet_runtime.role_status import StatusTracker

Weights = dict[str, NDArray[Any]]


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Parameters:
    """A running server and what to look at."""

    address: str
    store: ParameterStore
    registry: CollectorRegistry
    clock: Clock
    stopping: threading.Event
    loop: asyncio.AbstractEventLoop

    def figure(self, name: str) -> float:
        value = self.registry.get_sample_value(f"minefleet_parameters_{name}")
        assert value is not None, name
        return value

    def client(self, **arguments: Any) -> ParametersClient:
        return ParametersClient(self.address, patience_s=20.0, **arguments)


@contextmanager
def running(directory: Path, keep: int = 8, address: str = "127.0.0.1:0") -> Iterator[Parameters]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    registry, clock, stopping = CollectorRegistry(), Clock(), threading.Event()
    try:
        with open_store(directory, keep=keep) as store:

            async def start() -> tuple[grpc.aio.Server, int, asyncio.Task[None]]:
                service = ParametersService(store, ParametersMetrics(registry), StatusTracker())
                service.start()
                server = grpc.aio.server(
                    interceptors=[AioRpcInterceptor(RpcMetrics(registry), Access(NOTHING))], options=SERVER_OPTIONS
                )
                add_to_server(service, server)
                port = server.add_insecure_port(address)
                await server.start()
                return server, port, asyncio.create_task(service.drain_when(stopping))

            async def stop() -> None:
                stopping.set()
                await draining
                await server.stop(5.0)
                await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
                await loop.shutdown_default_executor()

            server, port, draining = asyncio.run_coroutine_threadsafe(start(), loop).result()
            try:
                yield Parameters(f"127.0.0.1:{port}", store, registry, clock, stopping, loop)
            finally:
                asyncio.run_coroutine_threadsafe(stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class CuttingProxy:
    """Passes bytes between a client and a server; cuts the first connection after so many bytes to the client."""

    def __init__(self, target: str, cut_after_bytes: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._left_bytes = cut_after_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.passed_bytes = 0

    def start(self) -> None:
        self._spawn(self._accept)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self.connections += 1
                self._spawn(partial(self._pass_on, client, server, counted=False))
                self._spawn(partial(self._pass_on, server, client, counted=True))

    def _pass_on(self, source: socket.socket, sink: socket.socket, *, counted: bool) -> None:
        first = self.connections == 1
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
                if counted:
                    self.passed_bytes += len(data)
                    self._left_bytes -= len(data)
                if counted and first and self._left_bytes <= 0:
                    break
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutting_proxy() -> Iterator[Callable[[str, int], CuttingProxy]]:
    """Starts a proxy: `cutting_proxy(address, cut_after_bytes)`."""
    proxies: list[CuttingProxy] = []

    def start(target: str, cut_after_bytes: int) -> CuttingProxy:
        proxies.append(CuttingProxy(target, cut_after_bytes))
        proxies[-1].start()
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def run_parameters() -> Callable[..., AbstractContextManager[Parameters]]:
    """Starts a server on a directory: `with run_parameters(tmp_path, keep=3) as parameters`."""
    return running


@pytest.fixture
def parameters(tmp_path: Path) -> Iterator[Parameters]:
    with running(tmp_path / "parameters") as started:
        yield started


@pytest.fixture
def make_weights() -> Callable[..., Weights]:
    """A policy's weights of about `size_bytes`, different for each seed but for the frozen half."""

    def make(seed: int = 0, size_bytes: int = 4096) -> Weights:
        count = size_bytes // 8
        return {
            "frozen.weight": np.random.default_rng(0).standard_normal(count, np.float32),
            "trained.weight": np.random.default_rng(seed + 1).standard_normal((count // 2, 2), np.float32),
            "empty": np.empty((0, 3), np.float32),
            "scale": np.array(float(seed)),
            "flags": np.array([True, False]),
            "steps": np.array(seed),
        }

    return make
