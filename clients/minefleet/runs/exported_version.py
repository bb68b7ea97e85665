"""A version that was exported: weights for others to use, without what training needs to go on as it was.

DIR/
├── model.safetensors   the policy's state, in its order and its dtypes
├── version.json        which version it is, and size and checksum of the model
└── config.yaml         `run.yaml` of its run; called otherwise, lest the directory be taken for a run
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash
from numpy.typing import NDArray

from minefleet.core.atomic_files import appearing, write_durably
from minefleet.core.errors import ConfigError
from minefleet.core.protobuf_dtypes import NUMPY_DTYPES
from minefleet.core.safetensors_writer import TensorRow, word_of, write_tensors
from minefleet.rpc.weights.version_info import VersionInfo
from minefleet.runs.run_yaml import RUN_FILE, VERSION_FILE, Run
from minefleet.v1 import weights_pb2

MODEL_FILE = "model.safetensors"
CONFIG_FILE = "config.yaml"
FORMAT = 1
METADATA = {"format": "pt"}
"""By this, other programs know that the names are those of a torch state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """An exported version."""

    run_id: str
    version: int
    epoch: int
    iteration: int
    architecture: str
    publish_time: str
    """ISO 8601."""
    model_bytes: int
    model_xxh3: str


def export(
    target: Path,
    run: Run,
    info: VersionInfo,
    entries: Sequence[weights_pb2.TensorEntry],
    array_of: Callable[[weights_pb2.TensorEntry], NDArray[Any]],
) -> dict[str, Any]:
    """Writes a version into a directory of its own, which appears whole. Returns a report.

    Args:
        target: The directory; there may be an empty one.
        run: Whose version it is.
        info: The version.
        entries: Its tensors, in the policy's order.
        array_of: Returns a tensor that has been verified; called once for each.

    Raises:
        ConfigError: If there is something in the target, or it cannot be written.
    """
    with appearing(target) as aside:
        checksum = write_model(aside / MODEL_FILE, entries, array_of)
        exported = Exported(
            run_id=info.run_id,
            version=info.version,
            epoch=info.epoch,
            iteration=info.iteration,
            architecture=info.architecture,
            publish_time=info.publish_time.isoformat(),
            model_bytes=(aside / MODEL_FILE).stat().st_size,
            model_xxh3=checksum,
        )
        write_durably(aside / CONFIG_FILE, (run.directory / RUN_FILE).read_bytes())
        write_durably(
            aside / VERSION_FILE, (json.dumps({"format": FORMAT, **asdict(exported)}, indent=1) + "\n").encode()
        )
    return {"run_dir": str(run.directory), "directory": str(target), "tensors": len(entries), **asdict(exported)}


def write_model(
    path: Path, entries: Sequence[weights_pb2.TensorEntry], array_of: Callable[[weights_pb2.TensorEntry], NDArray[Any]]
) -> str:
    """Writes tensors as a safetensors file, in the order and the dtypes of `entries`; returns its xxh3-64."""
    entry_of = {entry.name: entry for entry in entries}
    return write_tensors(path, [_row(entry) for entry in entries], lambda name: array_of(entry_of[name]), METADATA)


def is_exported(path: Path) -> bool:
    """Whether a directory holds an exported version."""
    return (path / VERSION_FILE).is_file()


def read_exported(path: Path) -> Exported:
    """Returns the version that was exported, and verifies the model.

    Raises:
        ConfigError: If it is incomplete or damaged.
    """
    return _read(path)[0]


def read_model(path: Path) -> dict[str, NDArray[Any]]:
    """Reads an exported version's weights.

    Raises:
        ConfigError: If it is incomplete or damaged.
    """
    from safetensors.numpy import load

    return load(_read(path)[1])


def _row(entry: weights_pb2.TensorEntry) -> TensorRow:
    dtype = NUMPY_DTYPES[entry.dtype]
    return TensorRow(entry.name, word_of(dtype), entry.shape, math.prod(entry.shape) * dtype.itemsize)


def _read(path: Path) -> tuple[Exported, bytes]:
    try:
        content = json.loads((path / VERSION_FILE).read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        exported = Exported(**content)
        data = (path / MODEL_FILE).read_bytes()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the exported version {path} cannot be used: {error}") from error
    if xxhash.xxh3_64_hexdigest(data) != exported.model_xxh3:
        raise ConfigError(f"the exported version {path} is damaged: {MODEL_FILE} is not what was written")
    return exported, data
