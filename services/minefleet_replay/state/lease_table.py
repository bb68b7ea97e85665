"""The learner's leases in the current epoch."""

import json
from dataclasses import dataclass, field
from typing import Literal

MAX_OPEN = 16
"""Leases that may be open at once: one read ahead, one in training, the others trained and not yet acked."""

CLOSED_KEPT = 256
"""Closed leases that are remembered, so that a repeated Ack or Release is recognised."""

Ending = Literal["acked", "released"]


@dataclass(frozen=True, slots=True)
class OpenLease:
    """An open lease. Its row is the charge of one use of each of its chunks."""

    number: int
    use_version: int
    chunks: tuple[tuple[int, int], ...]
    """(chunk id, uses acked before)"""
    max_reuse: int = 0
    """The limit that it was granted under, where that is known: it keeps it."""

    def to_row(self) -> bytes:
        """Packs it."""
        row = {"use_version": self.use_version, "chunks": self.chunks, "max_reuse": self.max_reuse}
        return json.dumps(row).encode()


@dataclass(slots=True)
class LeaseTable:
    """Open leases, and how the latest others ended."""

    open: dict[int, OpenLease] = field(default_factory=dict)
    closed: dict[int, Ending] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    """When those of the open ones were granted that this process has granted, seconds."""

    def grant(self, lease: OpenLease, now: float | None = None) -> None:
        """Opens a lease."""
        self.open[lease.number] = lease
        if now is not None:
            self.since[lease.number] = now

    def close(self, number: int, ending: Ending) -> None:
        """Closes a lease."""
        del self.open[number]
        self.since.pop(number, None)
        self.closed[number] = ending

    def surplus(self) -> list[int]:
        """Closed leases to forget when one more is closed, the earliest first."""
        return list(self.closed)[: max(0, len(self.closed) + 1 - CLOSED_KEPT)]

    def forget(self, number: int) -> None:
        """Forgets a closed lease."""
        del self.closed[number]

    def clear(self) -> None:
        """Forgets all: another epoch begins."""
        self.open.clear()
        self.since.clear()
        self.closed.clear()


def ending_row(ending: Ending) -> bytes:
    """Packs how a lease ended."""
    return json.dumps({"ending": ending}).encode()


def read_rows(rows: dict[int, bytes]) -> LeaseTable:
    """Inverts the rows of the current epoch's leases."""
    leases = LeaseTable()
    for number, row in rows.items():
        data = json.loads(row)
        if "ending" in data:
            leases.closed[number] = data["ending"]
        else:
            chunks = tuple((chunk_id, uses) for chunk_id, uses in data["chunks"])
            leases.grant(OpenLease(number, data["use_version"], chunks, data.get("max_reuse", 0)))
    return leases
