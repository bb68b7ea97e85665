"""Steps that were not finite, kept so that they can be repeated.

RUN_DIR/bad-steps/
└── 00000/
    ├── checkpoints/latest/     weights before the step, optimizer, reference, generators, run.yaml: a checkpoint
    ├── batch.safetensors       its fragments as the learner saw them, and what was prepared of them
    └── step.json               their names, the micro-batches, the rates
"""

import json
import logging
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minefleet.core.atomic_files import appearing, disk_bytes, write_durably
from minefleet.core.errors import ConfigError
from minefleet.core.safetensors_writer import row_of, write_tensors
from minefleet.core.tree import Tree, flatten, unflatten
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, newest, read, write
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run
from minefleet_learner.algorithms.ppo import StepTargets
from minefleet_learner.checkpoints.restore import take_snapshot
from minefleet_learner.data.batch import OF_TENSORS, Batch
from minefleet_learner.data.sequence_windows import Pieces
from minefleet_learner.targets.epoch_preparation import Prepared
from minefleet_learner.training.optimizer_step import BAD_STEPS
from minefleet_learner.training.schedules import Rates
from minefleet_learner.training.updater import BadStep, Updater

logger = logging.getLogger(__name__)

BATCH_FILE = "batch.safetensors"
STEP_FILE = "step.json"
MAX_DUMPS = 5
"""Per run: the first ones tell most."""
MAX_DUMP_BYTES = 2**32
"""Of all dumps of a run; what would exceed it is not kept."""
OF_PREPARED = ("start", "reference_start")
OF_PIECES = tuple(field.name for field in fields(Pieces))


class BadStepDumps:
    """Keeps the first bad steps of a run."""

    def __init__(self, run: Run, *, rank: int = 0, most_bytes: int = MAX_DUMP_BYTES) -> None:
        self._run = run
        self._rank = rank
        self._most_bytes = most_bytes

    def __call__(self, updater: Updater, bad: BadStep) -> None:
        """Keeps a step, if there is room. What keeps it from being written is logged: the training matters more."""
        directory = self._run.directory / BAD_STEPS
        number = len(list(directory.glob("[0-9]*")))
        if number >= MAX_DUMPS:
            return
        checkpoint = take_snapshot(updater, CheckpointState(run_id=""), (self._run.directory / RUN_FILE).read_text())
        arrays = _arrays(bad)
        size_bytes = _bytes_of(checkpoint) + sum(tensor.nbytes for tensor in arrays.values())
        if disk_bytes(directory) + size_bytes > self._most_bytes:
            return
        if bad.rng is not None:
            checkpoint = replace(checkpoint, rng=bad.rng)
        place = directory / (f"{number:05d}-rank-{self._rank}" if self._rank else f"{number:05d}")
        try:
            with appearing(place) as aside:
                _write(aside, checkpoint, arrays, _words(bad))
        except (ConfigError, OSError) as error:
            logger.warning("the step that is not finite is not kept: %s", error)
        else:
            logger.warning("the step is kept in %s", place)


@dataclass(frozen=True, kw_only=True, slots=True)
class BadStepDump:
    """The contents of a dump."""

    run: Run
    checkpoint: Checkpoint
    bad: BadStep


def read_dump(path: Path, device: torch.device) -> BadStepDump:
    """Reads a dump; tensors of the step go to a device.

    Raises:
        ConfigError: If there is none, or it is not whole.
    """
    from safetensors import SafetensorError

    place = newest(path / "checkpoints")
    if place is None or not (path / STEP_FILE).exists():
        raise ConfigError(f"{path} holds no step of {BAD_STEPS}: it lacks checkpoints or {STEP_FILE}")
    try:
        bad = _read_step(path, device)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(f"the step in {path} is damaged: {error}") from error
    return BadStepDump(run=read_run(place, RUN_FILE), checkpoint=read(place), bad=bad)


def _read_step(path: Path, device: torch.device) -> BadStep:
    from safetensors.torch import load_file

    words = json.loads((path / STEP_FILE).read_text())
    tensors = {name: tensor.to(device) for name, tensor in load_file(path / BATCH_FILE).items()}
    batch = Batch(
        names=[(stream, sequence) for stream, sequence in words["names"]],
        **(_trees(tensors, "batch", OF_TENSORS) | {"duration": tensors.get("batch/duration")}),
    )
    prepared = None
    if words["micro_batches"]:
        pieces = Pieces(**_trees(tensors, "pieces", OF_PIECES))
        trees: dict[str, Any] = _trees(tensors, "targets", StepTargets._fields)
        prepared = Prepared(
            batch=batch, pieces=pieces, targets=StepTargets(**trees), **_trees(tensors, "prepared", OF_PREPARED)
        )
    return BadStep(batch=batch, rates=Rates(**words["rates"]), prepared=prepared, micro_batches=words["micro_batches"])


def _arrays(bad: BadStep) -> dict[str, Tensor]:
    """All tensors of a step, by path."""
    parts: dict[str, Tree] = {"batch": bad.batch.tensors()}
    if bad.prepared is not None:
        parts["prepared"] = {name: getattr(bad.prepared, name) for name in OF_PREPARED}
        parts["targets"] = bad.prepared.targets._asdict()
        parts["pieces"] = {name: getattr(bad.prepared.pieces, name) for name in OF_PIECES}
    return flatten(parts)


def _trees(tensors: dict[str, Tensor], part: str, names: Any) -> dict[str, Tree]:
    """Inverts `_arrays` for one part; a name without tensors is an empty tree."""
    of_part = {path.removeprefix(f"{part}/"): one for path, one in tensors.items() if path.startswith(f"{part}/")}
    found = unflatten(of_part)
    return {name: found.get(name, {}) for name in names}


def _words(bad: BadStep) -> str:
    content = {"names": bad.batch.names, "micro_batches": bad.micro_batches, "rates": asdict(bad.rates)}
    return json.dumps(content, indent=1) + "\n"


def _write(aside: Path, checkpoint: Checkpoint, tensors: dict[str, Tensor], words: str) -> None:
    write(aside / "checkpoints", checkpoint)
    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    rows = sorted((row_of(name, array) for name, array in arrays.items()), key=lambda row: -arrays[row.name].itemsize)
    write_tensors(aside / BATCH_FILE, rows, arrays.__getitem__)
    write_durably(aside / STEP_FILE, words.encode())


def _bytes_of(checkpoint: Checkpoint) -> int:
    parts: list[Any] = [checkpoint.policy, checkpoint.optimizer, checkpoint.reference or {}, checkpoint.carried or {}]
    return sum(array.nbytes for part in parts for array in part.values())
