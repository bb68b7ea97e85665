"""Records of the store on disk: its identity and its versions."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format

from minefleet.core.errors import CorruptError, RejectedError
from minefleet.rpc.weights.manifest import check_manifest
from minefleet.v1 import weights_pb2

DISK_FULL_RETRY_S = 5.0
IDENTITY_FILE = "identity.json"
DAMAGED_SUFFIX = ".damaged"
"""Suffix under which people set the record of a damaged version aside."""


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


def read_version(path: Path) -> weights_pb2.Version:
    """Reads the record of a version.

    Raises:
        CorruptError: If it is damaged; says how to go on without it.
    """
    try:
        version = json_format.Parse(path.read_text(), weights_pb2.Version())
        check_manifest(version.manifest)
        if str(version.version) != path.stem:
            raise RejectedError(f"it says that it is version {version.version}")
    except (json_format.ParseError, UnicodeDecodeError, RejectedError) as error:
        aside = path.with_suffix(DAMAGED_SUFFIX).name
        raise CorruptError(f"{path} is damaged: {error}. Rename it to {aside} to go on without this version") from error
    return version


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


def newest_damaged(directory: Path) -> int:
    """The highest version whose record was set aside as damaged; 0 where there is none."""
    numbers = (int(path.stem) for path in directory.glob(f"*{DAMAGED_SUFFIX}") if path.stem.isdigit())
    return max(numbers, default=0)
