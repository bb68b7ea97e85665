"""Drop records: why fragments left replay, one record per chunk, or part of a chunk."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from minefleet.v1 import fragment_pb2, replay_service_pb2


@dataclass(frozen=True, kw_only=True, slots=True)
class DropRecord:
    """Why and when fragments of one chunk left."""

    stream: str
    chunk: int
    sequences: Sequence[int]
    """The fragments."""
    reason: str
    """"trained", "stale", "abandoned", "incomplete", "late", "evicted" or "corrupt"."""
    uses: int
    """Uses acked before."""
    steps: int
    """In them."""
    oldest_version: int
    """The oldest policy version in them."""
    at: float
    """Seconds since 1970, by replay's clock."""

    @property
    def left_at(self) -> datetime:
        """When they left, in local time."""
        return datetime.fromtimestamp(self.at, UTC).astimezone()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        values = asdict(self) | {"sequences": list(self.sequences), "left_at": self.left_at.isoformat("T", "seconds")}
        del values["at"]
        return values

    def to_proto(self) -> replay_service_pb2.Departure:
        """As it travels."""
        message = replay_service_pb2.Departure(
            chunk=fragment_pb2.ChunkName(stream=self.stream, chunk=self.chunk),
            sequences=self.sequences,
            reason=self.reason,
            uses=self.uses,
            steps=self.steps,
            oldest_version=self.oldest_version,
        )
        message.left_at.FromMicroseconds(round(self.at * 1e6))
        return message

    @classmethod
    def from_proto(cls, message: replay_service_pb2.Departure) -> "DropRecord":
        """Inverts `to_proto`."""
        return cls(
            stream=message.chunk.stream,
            chunk=message.chunk.chunk,
            sequences=tuple(message.sequences),
            reason=message.reason,
            uses=message.uses,
            steps=message.steps,
            oldest_version=message.oldest_version,
            at=message.left_at.ToMicroseconds() / 1e6,
        )
