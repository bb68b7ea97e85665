"""Checkpoints: directories that are there whole or not at all.

CHECKPOINTS/
├── 00000120/               one per kept iteration
│   ├── policy.safetensors      weights, normalisers included
│   ├── optimizer.safetensors   its moments, by parameter
│   ├── scaler.safetensors      the scale of the loss, only in float16
│   ├── reference.safetensors   only when a reference is kept
│   ├── carried.safetensors     its recurrent states, by stream, only when it carries some
│   ├── rng.safetensors         the generators of Python, NumPy and torch
│   ├── run.yaml                the configuration that made it
│   └── state.json              counters, and size and checksum of every other file
├── set-aside/              those that a rollback has undone
├── best -> 00000080        the one with the best mean return, likewise
└── latest -> 00000120      swapped in one step

A checkpoint is written under a name that starts with a dot, synced, and renamed; then `latest` is replaced. A crash
leaves the old `latest` and at most a dotted directory, which the next write removes. A second one of an iteration gets
a suffix: `00000120.1`.

A learner that was frozen while another took over finds that one's epoch in `latest`, and touches nothing. It is looked
for before anything is changed and again before `latest` is; should it be frozen between that and the swap, the next
checkpoint of the newer learner puts `latest` right.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from numpy.typing import NDArray

from minefleet.core.atomic_files import sync, write_durably
from minefleet.core.errors import ConfigError, FencedError
from minefleet.core.safetensors_writer import row_of, write_tensors

LATEST = "latest"
BEST = "best"
FORMAT = 1
STATE_FILE = "state.json"
RUN_FILE = "run.yaml"
TENSORS = ("policy", "optimizer", "scaler", "reference", "carried", "rng")
OPTIONAL = ("scaler", "reference", "carried")
"""Those of the tensors' files that need not be there."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointState:
    """Position of training in a run."""

    run_id: str
    epoch: int = 0
    """Of the learner that wrote it; 0 before it had one."""
    version: int = 0
    """The newest version it had published; 0 before the first."""
    iteration: int = 0
    """Iterations done."""
    env_steps: int = 0
    trained_steps: int = 0
    """Unique steps that reached an update."""
    skipped_steps: int = 0
    """Optimizer steps left out because something was not finite."""
    wall_s: float = 0.0
    """Seconds of training, over all launches."""
    episode_cursors: list[int] = field(default_factory=list)
    """Next position in the episode log of each shard of replay; empty before the first read."""
    episodes: dict[str, Any] = field(default_factory=dict)
    """Statistics of the episodes read so far, as the learner keeps them."""
    best_return: float | None = None
    """The best mean return at which a checkpoint was written; None before the first that counts."""
    best_iteration: int = 0
    """Of that checkpoint."""
    stopped_by: str = ""
    """The condition that ended the run; empty while it goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that training needs to go on as if it had never stopped."""

    state: CheckpointState
    policy: Arrays
    optimizer: Arrays
    rng: Arrays
    run: str
    """Text of `run.yaml`."""
    scaler: Arrays | None = None
    reference: Arrays | None = None
    carried: Arrays | None = None


def write(directory: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint below `directory`, makes it `latest`, and returns its path.

    Raises:
        FencedError: If `latest` is of a newer epoch. It stays.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _refuse_fenced(directory, checkpoint.state.epoch)
    remove_leftovers(directory)
    aside = directory / f".aside-{os.getpid()}"
    aside.mkdir()
    checksums = {}
    for name in TENSORS:
        arrays = getattr(checkpoint, name)
        if arrays is not None:
            file = f"{name}.safetensors"
            checksums[file] = _write_arrays(aside / file, arrays)
    write_durably(aside / RUN_FILE, checkpoint.run.encode())
    checksums[RUN_FILE] = _checksum(checkpoint.run.encode())
    write_durably(aside / STATE_FILE, _state_text(aside, checkpoint.state, checksums).encode())
    sync(aside)
    _refuse_fenced(directory, checkpoint.state.epoch)
    place = free_name(directory, checkpoint.state.iteration)
    aside.rename(place)
    if checkpoint.state.best_return is not None and checkpoint.state.best_iteration == checkpoint.state.iteration:
        point(directory, BEST, place.name)
    point(directory, LATEST, place.name)
    return place


def newest(directory: Path) -> Path | None:
    """The checkpoint that `latest` names, or None where there is none."""
    path = directory / LATEST
    return path.resolve() if path.is_symlink() else None


def read_state(path: Path) -> CheckpointState:
    """Reads a checkpoint's state and verifies all its files.

    Raises:
        ConfigError: If it is missing, incomplete or damaged.
    """
    state, files = _read_state_file(path)
    for name, (size, checksum) in files.items():
        data = _read_file(path, name)
        if len(data) != size or _checksum(data) != checksum:
            raise ConfigError(f"the checkpoint {path} is damaged: {name} is not what was written")
    return state


def read(path: Path) -> Checkpoint:
    """Reads a whole checkpoint.

    Raises:
        ConfigError: If it is missing, incomplete or damaged.
    """
    state = read_state(path)
    return Checkpoint(
        state=state,
        policy=_read_arrays(path, "policy"),
        optimizer=_read_arrays(path, "optimizer"),
        rng=_read_arrays(path, "rng"),
        **{name: _read_arrays(path, name) for name in OPTIONAL if (path / f"{name}.safetensors").exists()},
        run=(path / RUN_FILE).read_text(),
    )


def read_policy(path: Path) -> dict[str, NDArray[Any]]:
    """Reads a checkpoint's weights, in alphabetical order.

    Raises:
        ConfigError: If it is missing, incomplete or damaged.
    """
    read_state(path)
    return _read_arrays(path, "policy")


def remove_leftovers(directory: Path) -> None:
    """Removes what a crash left half written."""
    for path in directory.glob(".aside-*"):
        shutil.rmtree(path)
    for name in (LATEST, BEST):
        for path in directory.glob(f".{name}-*"):
            path.unlink()


def _write_arrays(path: Path, arrays: Arrays) -> str:
    """Writes them as `safetensors` would: largest elements first, so that each array is aligned, then by name.

    Returns the checksum of the file.
    """
    rows = sorted((row_of(name, array) for name, array in arrays.items()), key=lambda row: row.name)
    rows.sort(key=lambda row: arrays[row.name].itemsize, reverse=True)
    return write_tensors(path, rows, arrays.__getitem__)


def _refuse_fenced(directory: Path, epoch: int) -> None:
    path = newest(directory)
    try:
        newer = 0 if path is None else _read_state_file(path)[0].epoch
    except ConfigError:
        return  # Damaged, so it holds nothing to lose.
    if newer > epoch:
        raise FencedError(f"epoch {epoch} is fenced: {path} is of epoch {newer}")


def _state_text(directory: Path, state: CheckpointState, checksums: Mapping[str, str]) -> str:
    """The state with size and checksum of every file beside it, and a checksum of its own."""
    files = {
        name: {"bytes": (directory / name).stat().st_size, "xxh3": checksum}
        for name, checksum in sorted(checksums.items())
    }
    content = {"format": FORMAT, **asdict(state), "files": files}
    return json.dumps(content | {"xxh3": _checksum(_canonical(content))}, indent=1) + "\n"


def _read_state_file(path: Path) -> tuple[CheckpointState, dict[str, tuple[int, str]]]:
    try:
        content = json.loads(_read_file(path, STATE_FILE))
        checksum = content.pop("xxh3")
        if checksum != _checksum(_canonical(content)):
            raise ValueError("its checksum differs")
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        files = {name: (entry["bytes"], entry["xxh3"]) for name, entry in content.pop("files").items()}
        return CheckpointState(**content), files
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the checkpoint {path} is damaged: {STATE_FILE} cannot be used: {error}") from error


def _read_file(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} {_what_is_there(path, name)}: cannot read {name}: {error.strerror}") from error


def _what_is_there(path: Path, missing: str) -> str:
    if not path.exists():
        return "does not exist"
    if (path / "checkpoints").is_dir():
        return f"is a run; its checkpoints are in {path / 'checkpoints'}"
    return "is no checkpoint" if missing == STATE_FILE else "is incomplete"


def _read_arrays(path: Path, name: str) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load

    return load((path / f"{name}.safetensors").read_bytes())


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _checksum(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def free_name(directory: Path, iteration: int) -> Path:
    """A place in a directory for one more checkpoint of an iteration."""
    place, suffix = directory / f"{iteration:08d}", 0
    while place.exists():
        suffix += 1
        place = directory / f"{iteration:08d}.{suffix}"
    return place


def point(directory: Path, link: str, name: str) -> None:
    """Points a link at a checkpoint, in one step."""
    sync(directory)
    aside = directory / f".{link}-{os.getpid()}"
    aside.symlink_to(name)
    aside.replace(directory / link)
    sync(directory)


def numbered(directory: Path) -> dict[tuple[int, int], Path]:
    """The finished checkpoints, by iteration and suffix."""
    places = {}
    for path in directory.iterdir():
        iteration, _, suffix = path.name.partition(".")
        if iteration.isdigit():
            places[int(iteration), int(suffix or 0)] = path
    return places
