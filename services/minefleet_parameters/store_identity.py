"""The identity of a store on disk: whose versions it holds."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from minefleet.core.errors import CorruptError
from minefleet.v1 import weights_pb2

IDENTITY_FILE = "identity.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreIdentity:
    """The owner of these versions. The numbers only rise."""

    run_id: str = ""
    """Empty until a learner opens an epoch."""
    epoch: int = 0
    newest_version: int = 0
    """Not below the newest version; above it when a checkpoint knew a higher one."""
    pinned: tuple[int, ...] = ()
    """Versions that are kept whatever their age."""


def read_identity(path: Path) -> StoreIdentity:
    """Reads the identity of a store; that of a new one where there is none.

    Raises:
        CorruptError: If it is damaged.
    """
    if not path.exists():
        return StoreIdentity()
    try:
        data = json.loads(path.read_text())
        identity = StoreIdentity(**{**data, "pinned": tuple(data["pinned"])})
        numbers = (identity.epoch, identity.newest_version, *identity.pinned)
        if not isinstance(identity.run_id, str) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise TypeError("its values are of other types")
        return identity
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} is damaged: {error}") from error


def check_identity(identity: StoreIdentity, versions: Iterable[weights_pb2.Version], path: Path) -> None:
    """Refuses versions that are not of the store's run and epochs; `path` is the identity's.

    Raises:
        CorruptError: If there is one.
    """
    for version in versions:
        if not identity.run_id:
            raise CorruptError(f"{path.parent} holds versions, but {path} is gone")
        if version.run_id != identity.run_id or version.epoch > identity.epoch:
            raise CorruptError(
                f"{path} is damaged: it says run {identity.run_id} and epoch {identity.epoch}, version "
                f"{version.version} is of run {version.run_id} and epoch {version.epoch}"
            )
