"""Prometheus metrics of every role: build, process, state, disk, and its RPCs under the names of go-grpc-prometheus."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from minefleet.rpc.enum_names import state_word
from minefleet.v1 import status_service_pb2
from minefleet_runtime.cpu_time import ProcessorCollector
from minefleet_runtime.role_status import StatusTracker

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
class CallOutcome:
    """The end of a call; its handler's wrapper changes it."""

    code: grpc.StatusCode = grpc.StatusCode.OK


class RpcMetrics:
    """The calls that a server answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.started = Counter("grpc_server_started", "RPCs started on the server.", RPC_LABELS, registry=registry)
        self.handled = Counter(
            "grpc_server_handled", "RPCs completed on the server.", (*RPC_LABELS, "grpc_code"), registry=registry
        )
        self.handling_s = Histogram(
            "grpc_server_handling_seconds", "Time in which the server handled RPCs.", RPC_LABELS, registry=registry
        )

    @contextmanager
    def observe(self, rpc: Rpc) -> Iterator[CallOutcome]:
        """Counts and times one call."""
        self.started.labels(*rpc.labels).inc()
        began, outcome = time.monotonic(), CallOutcome()
        try:
            yield outcome
        finally:
            self.handled.labels(*rpc.labels, outcome.code.name).inc()
            self.handling_s.labels(*rpc.labels).observe(time.monotonic() - began)


def register_process(registry: CollectorRegistry, role: str) -> None:
    """Registers `minefleet_build_info` and the process's memory, CPU time and open files."""
    build = Info("minefleet_build", "The build that this role runs.", registry=registry)
    build.info({"version": metadata.version("minefleet"), "python": platform.python_version(), "role": role})
    ProcessCollector(registry=registry)
    registry.register(ProcessorCollector())


class StateCollector(Collector):
    """The status at the moment of the scrape."""

    def __init__(self, status: StatusTracker) -> None:
        self._status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One sample per state: 1 for the role's own, 0 for the others."""
        now = self._status.snapshot().state
        states = GaugeMetricFamily("minefleet_state", "1 for the state that the role is in.", labels=["state"])
        for state in status_service_pb2.State.values():
            if state != status_service_pb2.STATE_UNSPECIFIED:
                states.add_metric([state_word(state)], float(state == now))
        yield states


class DiskCollector(Collector):
    """The disk that a directory lies on, at the moment of the scrape."""

    def __init__(self, prefix: str, directory: Path) -> None:
        self._prefix = prefix
        self._directory = directory

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Free bytes, as far as this process may use them, and size."""
        disk = os.statvfs(self._directory)
        bytes_by_kind = {
            "free": (disk.f_bavail, "Bytes that are free on the disk of the role's directory."),
            "size": (disk.f_blocks, "Bytes of the disk of the role's directory."),
        }
        for name, (blocks, text) in bytes_by_kind.items():
            yield GaugeMetricFamily(f"{self._prefix}_disk_{name}_bytes", text, value=blocks * disk.f_frsize)
