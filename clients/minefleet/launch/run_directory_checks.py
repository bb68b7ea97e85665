"""Checks of a run's directory and configuration before a role starts; each raises a ConfigError."""

import json
import os
from pathlib import Path

from minefleet.config import FleetConfig, TrainConfig
from minefleet.config.replay_partitioning import NUM_SHARDS
from minefleet.config.root_config import OUR_TRAINER
from minefleet.config.train import AUTO
from minefleet.core.child_process_answers import ask
from minefleet.core.child_process_start import Start, start_fresh
from minefleet.core.errors import ConfigError
from minefleet.runs.checkpoint_files import newest, read_state
from minefleet.runs.exported_version import is_exported
from minefleet.runs.run_yaml import RUN_FILE, Run, read_architecture
from minefleet.runs.trained_policy_files import inspect_policy

IDENTITY_FILE = "identity.json"
"""In each store: {"run_id": ...}."""


def check_vacant(run: Run) -> None:
    """Refuses a directory that holds a run, or stores that do.

    Raises:
        ConfigError: Says what is there.
    """
    if (run.directory / RUN_FILE).exists():
        raise ConfigError(f"{run.directory} already holds a run; continue it with --resume, or give another --run-dir")
    for store in _stores(run):
        holder = stored_run(store)
        if holder:
            raise ConfigError(f"{store} holds run {holder}; give another directory")
    if newest(run.checkpoints) is not None:
        raise ConfigError(
            f"{run.checkpoints} holds another run's checkpoints; give another directory as train_config.save_path"
        )


def check_resume(config: TrainConfig) -> str | None:
    """Refuses to start from what is no trained policy, or has no optimizer although it is wanted.

    Returns the architecture of that policy; None to start afresh.

    Raises:
        ConfigError: Says what is broken or lacking.
    """
    if config.resume is None or config.resume == AUTO:
        return None
    path = Path(config.resume)
    trained = inspect_policy(path)
    if config.resume_optimizer and is_exported(path):
        raise ConfigError(
            f"{path} is an exported version and has no optimizer; add train_config.resume_optimizer=false"
        )
    return read_architecture(path, trained.run_file)


def check_trainer(config: FleetConfig, start: Start = start_fresh) -> None:
    """Refuses a trainer that cannot be found, or is none; a child process imports it.

    Raises:
        ConfigError: Says what was found.
    """
    if config.trainer_name != OUR_TRAINER:
        ask("minefleet_learner.trainer_loader", config.trainer_name, start=start)


def check_shards(config: FleetConfig, previous: Run) -> None:
    """Refuses to resume with another number of shards: each store holds its own streams, and every shard must serve.

    Raises:
        ConfigError: Names both numbers.
    """
    before, wanted = len(previous.shards), config.rollout_config.replay_buffer_config.database_config.num_shards
    for name, number in (("services.replay", len(config.services.replay)), (NUM_SHARDS, wanted)):
        if number != before:
            raise ConfigError(
                f"the number of replay's shards cannot change within a run: {previous.directory} has {before}, {name} "
                f"says {number}"
            )


def check_checkpoint(run: Run) -> None:
    """Refuses to resume from a broken checkpoint, or with stores of another run.

    Raises:
        ConfigError: Says what is broken, or names both runs.
    """
    checkpoint = newest(run.checkpoints)
    expected = read_state(checkpoint).run_id if checkpoint is not None else ""
    for store in _stores(run):
        holder = stored_run(store)
        if holder and holder != expected:
            whose = f"the checkpoint {checkpoint} is of run {expected}" if checkpoint else "there is no checkpoint"
            raise ConfigError(f"{store} holds run {holder}, but {whose}")


def _stores(run: Run) -> list[Path]:
    """Every store in the run directory, also of another number of shards."""
    shards = sorted(path.parent for path in run.replay.glob(f"*/{IDENTITY_FILE}"))
    return [run.replay, *shards, run.parameters]


def stored_run(store: Path) -> str:
    """The run that a store holds; empty for none.

    Raises:
        ConfigError: If the store does not say.
    """
    path = store / IDENTITY_FILE
    try:
        return str(json.loads(path.read_text())["run_id"])
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot tell which run {store} holds: {path} is damaged: {error}") from error


def check_writable(directory: Path, what: str = "the run directory") -> None:
    """Refuses a directory that cannot be made, or not be written; `what` names it.

    Raises:
        ConfigError: Names the folder in the way.
    """
    place = directory
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"cannot write {what} {directory}: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {what} {directory}: no permission to write in {place}")
