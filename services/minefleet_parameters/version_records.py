"""The records of a store's versions on disk."""

from pathlib import Path

from google.protobuf import json_format

from minefleet.core.errors import CorruptError, RejectedError
from minefleet.rpc.weights.manifest import check_manifest
from minefleet.v1 import weights_pb2

DAMAGED_SUFFIX = ".damaged"
"""Suffix under which people set the record of a damaged version aside."""


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


def newest_damaged(directory: Path) -> int:
    """The highest version whose record was set aside as damaged; 0 where there is none."""
    numbers = (int(path.stem) for path in directory.glob(f"*{DAMAGED_SUFFIX}") if path.stem.isdigit())
    return max(numbers, default=0)
