"""What every role exports: its build, its process, and its RPCs under the names of go-grpc-prometheus."""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector

RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method; its fields are the labels of its metrics."""

    kind: str
    """"unary", "client_stream", "server_stream" or "bidi_stream"."""
    service: str
    method: str

    @property
    def labels(self) -> tuple[str, str, str]:
        """Values for `RPC_LABELS`."""
        return self.kind, self.service, self.method

    def __str__(self) -> str:
        return f"{self.service}/{self.method}"


@dataclass(slots=True)
class Outcome:
    """How a call ended; its handler's wrapper changes it."""

    code: grpc.StatusCode = grpc.StatusCode.OK


@dataclass(frozen=True, kw_only=True, slots=True)
class RpcMetrics:
    """The calls that a server answers."""

    started: Counter
    handled: Counter
    handling_s: Histogram

    @contextmanager
    def observe(self, rpc: Rpc) -> Iterator[Outcome]:
        """Counts and times one call."""
        self.started.labels(*rpc.labels).inc()
        began, outcome = time.monotonic(), Outcome()
        try:
            yield outcome
        finally:
            self.handled.labels(*rpc.labels, outcome.code.name).inc()
            self.handling_s.labels(*rpc.labels).observe(time.monotonic() - began)


def rpc_metrics(registry: CollectorRegistry) -> RpcMetrics:
    """Registers the metrics of a server's calls."""
    return RpcMetrics(
        started=Counter("grpc_server_started", "RPCs started on the server.", RPC_LABELS, registry=registry),
        handled=Counter(
            "grpc_server_handled", "RPCs completed on the server.", (*RPC_LABELS, "grpc_code"), registry=registry
        ),
        handling_s=Histogram(
            "grpc_server_handling_seconds", "Time in which the server handled RPCs.", RPC_LABELS, registry=registry
        ),
    )


def register_process(registry: CollectorRegistry, role: str) -> None:
    """Registers `minefleet_build_info` and the process's memory, CPU time and open files."""
    build = Info("minefleet_build", "The build that this role runs.", registry=registry)
    build.info({"version": metadata.version("minefleet"), "python": platform.python_version(), "role": role})
    ProcessCollector(registry=registry)
