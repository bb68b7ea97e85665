"""Prometheus metrics of replay. Durations are in seconds, staleness in policy versions."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from minefleet.core.errors import (
    ConflictError,
    ContractError,
    CorruptError,
    DeadlineError,
    FencedError,
    FleetError,
    NotFoundError,
    OverloadedError,
    RejectedError,
    RunMismatchError,
)
from minefleet_replay.state.ledger_totals import BUCKETS, Reason
from minefleet_replay.state.limits import Limits

STALENESS_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
USES_BUCKETS = (0, 1, 2, 3, 4, 8)
WAIT_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
REFUSALS = (
    ConflictError,
    ContractError,
    CorruptError,
    DeadlineError,
    FencedError,
    NotFoundError,
    OverloadedError,
    RejectedError,
    RunMismatchError,
)
"""Status codes of refused calls."""

GAUGES = {
    "unaccounted_fragments": "Fragments in no bucket of the ledger; below 0 when some are in two.",
    "unaccounted_steps": "Steps in no bucket of the ledger; below 0 when some are in two.",
    "coming_steps": "Steps that are granted and not stored yet.",
    "capacity_steps": "Steps that may be in the store or granted.",
    "held_steps": "Steps in the store.",
    "held_payload_bytes": "Payload bytes in the store that can still be used.",
    "payload_disk_bytes": "Bytes of the files of payloads.",
    "open_leases": "Leases that are neither acked nor released.",
    "newest_version": "The newest policy version reported.",
    "epoch": "The newest epoch reported.",
    "env_steps": "Environment steps that actors have reported.",
    "env_failures": "Environment failures that actors have reported.",
    "oldest_lease_seconds": "Time since the oldest open lease of this process was granted.",
    "unsynced_writes": "Writes that would not survive power loss.",
    "unsynced_seconds": "Time that appends have been acked of which power loss would take some.",
}


def refusal(kind: type[FleetError]) -> str:
    """The label of a call that is refused with this."""
    return kind.__name__.removesuffix("Error").lower()


class ReplayMetrics:
    """Replay's own metrics; those of its RPCs are the runtime's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, **labels: Iterable[str]) -> Counter:
            """A counter without labels, or with one; its values start at 0, since a rate does not see a first value."""
            made = Counter(f"minefleet_replay_{name}", text, [*labels], registry=registry)
            for value in chain(*labels.values()):
                made.labels(value)
            return made

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"minefleet_replay_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"minefleet_replay_{name}", text, buckets=buckets, registry=registry)

        self.appended = counter(
            "appended_fragments",
            "Fragments that arrived, by what became of them.",
            outcome=("stored", "duplicate", "expired"),
        )
        self.payload_bytes = counter("appended_payload_bytes", "Payload bytes stored, as packed.")
        self.raw_bytes = counter("appended_raw_bytes", "Bytes of the stored arrays before packing.")
        self.episodes = counter("appended_episodes", "Episode records stored.")
        self.dropped = counter("dropped_fragments", "Fragments that left, by reason.", reason=get_args(Reason))
        self.refused = counter("refused_calls", "Calls refused, by reason.", reason=map(refusal, REFUSALS))
        self.granted = counter("reserved_chunks", "Chunks asked for, by the answer.", granted=("true", "false"))
        self.lease_wait = histogram("lease_wait_seconds", "Time that a lease waited for enough.", WAIT_BUCKETS_S)
        self.lease_open = histogram(
            "lease_open_seconds", "Time that a lease was open until it was closed.", WAIT_BUCKETS_S
        )
        self.lease_staleness = histogram(
            "lease_staleness_versions", "Staleness of leased chunks at their use.", STALENESS_BUCKETS
        )
        self.lease_reuse = histogram("lease_reuse", "Uses of leased chunks before.", USES_BUCKETS)
        self.ledger = gauge("ledger_fragments", "Fragments by the ledger's bucket.", "bucket")
        self.gauges = {name: gauge(name, text) for name, text in GAUGES.items()}
        self.storage = gauge("rocksdb_properties", "RocksDB's own properties.", "property")

    def show(self, stats: Mapping[str, float]) -> None:
        """Sets the gauges that the status has too."""
        for name, gauge in self.gauges.items():
            gauge.set(stats[name])
        for bucket in BUCKETS:
            self.ledger.labels(bucket).set(stats[f"{bucket}_fragments"])


def show_limits(registry: CollectorRegistry, limits: Callable[[], Limits]) -> None:
    """Registers what replay allows, so that dashboards draw the bounds of the run that they show."""
    bounds = {
        "max_staleness_versions": (lambda: limits().max_staleness, "Largest staleness at use."),
        "max_reuse_uses": (lambda: limits().max_reuse, "Times that a chunk may be trained on."),
        "max_bytes": (lambda: limits().max_bytes, "Bytes that the store may take."),
    }
    for name, (bound, text) in bounds.items():
        Gauge(f"minefleet_replay_{name}", text, registry=registry).set_function(bound)
