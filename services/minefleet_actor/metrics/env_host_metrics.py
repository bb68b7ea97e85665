"""Prometheus metrics of a host."""

from collections.abc import Iterable

import prometheus_client
from prometheus_client import Counter, Gauge

from minefleet_env.process_messages import FAILURES, Failure
from minefleet_runtime.metrics import register_process


class HostMetrics:
    """The registry of a host, with its process's metrics and its own."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = prometheus_client.CollectorRegistry()
        register_process(registry, "host")
        self.worlds = Gauge("minefleet_host_worlds", "Environments that an actor plays.", registry=registry)
        self._results = Counter("minefleet_host_results", "Resets and steps done.", registry=registry)
        self._failures = Counter(
            "minefleet_host_env_failures", "Environments that failed, by how.", ("kind",), registry=registry
        )
        for kind in FAILURES:
            self._failures.labels(kind)

    def count(self, outcomes: int, failures: Iterable[Failure]) -> None:
        """Counts the outcomes of commands, failures among them."""
        for failure in failures:
            self._failures.labels(failure.kind).inc()
            outcomes -= 1
        self._results.inc(outcomes)
