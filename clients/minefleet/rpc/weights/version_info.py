"""A version as people and programs see it."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from minefleet.v1 import weights_pb2


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionInfo:
    """A version without its tensors."""

    version: int
    epoch: int
    run_id: str
    iteration: int
    """Training iterations done when it was published."""
    architecture: str
    """Fingerprint of the policy's architecture."""
    tensors: int
    """Number of tensors."""
    size_bytes: int
    """Bytes of its tensors; equal ones count once."""
    publish_time: datetime
    """When it became visible, by the server's clock."""
    pinned: bool
    """Kept whatever its age. From `fetch`: always False, for a fetch does not ask."""
    settings: str = ""
    """Live settings of the iteration that starts from it, JSON; empty where nothing differs from `run.yaml`."""
    promoted: int = 0
    """The newest version that all slots may act by since it was published: itself, or an older one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"publish_time": self.publish_time.isoformat()}


def read_info(info: weights_pb2.VersionInfo) -> VersionInfo:
    """A version as it was sent."""
    return VersionInfo(
        version=info.version,
        epoch=info.epoch,
        run_id=info.run_id,
        iteration=info.iteration,
        architecture=info.architecture_fingerprint,
        tensors=info.tensors,
        size_bytes=info.size_bytes,
        publish_time=info.publish_time.ToDatetime(UTC),
        pinned=info.pinned,
        settings=info.settings,
        promoted=info.promoted,
    )


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that parameters has issued to a learner."""

    epoch: int
    newest_version: int
    """The first publish becomes this plus one."""
