"""A trained policy on disk: a checkpoint, or a version that was exported."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from minefleet.core.errors import ConfigError
from minefleet.runs.checkpoint_files import STATE_FILE, newest, read_policy, read_state
from minefleet.runs.checkpoint_retention import hold
from minefleet.runs.exported_version import CONFIG_FILE, is_exported, read_exported, read_model
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedPolicy:
    """A trained policy without its weights."""

    version: int
    env_steps: int | None
    """Taken until then; a version that was exported does not know."""
    run_file: str
    """The file beside it that `read_run` reads."""


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path names: itself, or the last one of a run.

    Raises:
        ConfigError: If there is none.
    """
    if (path / STATE_FILE).exists() or not (path / RUN_FILE).exists():
        return path
    last = newest(read_run(path).checkpoints)
    if last is None:
        raise ConfigError(f"the run in {path} has no checkpoint yet")
    return last


def hold_checkpoint(path: Path) -> tuple[Path, int | None]:
    """The checkpoint that a path names, and a descriptor: until it is closed, a run that goes on does not remove it.

    There is no descriptor for what no run removes, such as a version that was exported.

    Raises:
        ConfigError: If there is none.
    """
    while True:
        checkpoint = find_checkpoint(path)
        descriptor = hold(checkpoint)
        if descriptor is not None or find_checkpoint(path) == checkpoint:
            return checkpoint, descriptor


def inspect_policy(path: Path) -> TrainedPolicy:
    """Returns the policy in a directory, and verifies its files.

    Raises:
        ConfigError: If there is none, or it is incomplete or damaged.
    """
    if is_exported(path):
        return TrainedPolicy(version=read_exported(path).version, env_steps=None, run_file=CONFIG_FILE)
    state = read_state(path)
    return TrainedPolicy(version=state.version, env_steps=state.env_steps, run_file=RUN_FILE)


def read_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Reads the weights that lie in a directory, in any order. Raises as `inspect_policy` does."""
    return read_model(path) if is_exported(path) else read_policy(path)


def read_trained(path: Path) -> tuple[TrainedPolicy, Run, dict[str, NDArray[Any]]]:
    """Returns the policy that a path names, the run that made it, as it was then, and the weights.

    Raises:
        ConfigError: If there is none, or it is incomplete or damaged.
    """
    place, descriptor = hold_checkpoint(path)
    try:
        trained = inspect_policy(place)
        return trained, read_run(place, trained.run_file), read_weights(place)
    finally:
        if descriptor is not None:
            os.close(descriptor)
