"""State of the run: the learner that may call, and the versions that can still be used."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from minefleet.core.errors import CorruptError

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """Replay's knowledge of the run."""

    run_id: str = ""
    """Empty until a first call names it."""
    schema: str = ""
    """Fingerprint of the run's schema."""
    epoch: int = 0
    """The newest epoch; older ones are fenced."""
    newest_version: int = 0
    """The newest policy version."""
    lineage: tuple[int, int, int] = (0, 0, 0)
    """Epoch, version that it resumed from, first version that it published: what `abandoned` has taken in."""
    abandoned: tuple[Span, ...] = ()
    """Open intervals: the versions strictly between belong to learners that crashed."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """Limits by name that the last settings have made others."""
    floor: int = 0
    """Earlier versions were too stale once; a larger `max_staleness` does not bring them back."""

    def with_epoch(self, epoch: int) -> "RunState":
        """A newer epoch began."""
        return replace(self, epoch=epoch)

    def with_version(self, version: int) -> "RunState":
        """A newer version was published."""
        return replace(self, newest_version=version)

    def resumed(self, lineage: tuple[int, int, int], max_staleness: int) -> "RunState":
        """A learner resumed: the versions between are abandoned. Intervals too old to matter are forgotten."""
        needed = [span for span in self.abandoned if span[1] > self.newest_version - max_staleness]
        return replace(self, lineage=lineage, abandoned=(*needed, lineage[1:]))

    def is_abandoned(self, oldest_version: int, newest_version: int) -> bool:
        """Whether a version that may have acted between these two is abandoned."""
        return any(max(oldest_version, low + 1) <= min(newest_version, high - 1) for low, high in self.abandoned)

    def to_row(self) -> bytes:
        """Packs it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_row(cls, row: bytes) -> "RunState":
        """Inverts `to_row`."""
        try:
            data = json.loads(row)
            lineage = tuple(data.pop("lineage"))
            abandoned = tuple((low, high) for low, high in data.pop("abandoned"))
            return cls(**data, lineage=lineage, abandoned=abandoned)
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptError(f"the store's row on where the run stands is unreadable: {error}") from error
