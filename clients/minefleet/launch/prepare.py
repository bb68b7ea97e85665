"""Finds what is wrong with a launch before a role starts. Only when nothing is, the run directory is written.

The cheap checks come first, then the environment and the policy are tried in a child process.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from minefleet.config import FleetConfig, TrainConfig
from minefleet.config.fleet import OUR_TRAINER
from minefleet.config.shards import NUM_SHARDS, spread
from minefleet.config.train import AUTO
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.core.subprocess_call import Start, ask, start_fresh
from minefleet.launch.ports import are_given, claim
from minefleet.launch.preflight import Of, preflight
from minefleet.runs.checkpoint import newest, read_state
from minefleet.runs.export import is_exported
from minefleet.runs.policy_source import inspect_policy
from minefleet.runs.run import RUN_FILE, Run, read_architecture, read_run

IDENTITY_FILE = "identity.json"
"""In each store: {"run_id": ...}."""
RESULT_FILE = "result.json"
"""Written by the learner when a run ends."""


def prepare(config: FleetConfig, directory: Path, start: Start = start_fresh, of: Of | None = None) -> Run:
    """Makes the directory of a new run.

    Args:
        config: As far as is known without the environment.
        directory: Where the run goes.
        start: Starts child processes.
        of: The configuration once it is known what the environment shows; None where it is `config` in any case.

    Raises:
        ConfigError: If the configuration cannot work or the directory cannot be used. Nothing has been written then.
    """
    config = spread(config)
    draft = Run(directory=directory.absolute(), config=config, schema=Schema(obs={}, action={}), architecture="")
    check_vacant(draft)
    check_writable(draft.directory)
    check_writable(draft.checkpoints, "train_config.save_path")
    check_writable(draft.replay, "rollout_config.replay_buffer_config.database_config.path")
    trained = check_resume(config.train_config)
    check_trainer(config, start)
    services = claim(config.services)
    found = preflight(config, start, None if of is None else lambda schema: spread(of(schema)))
    if trained not in (None, found.architecture):
        raise ConfigError(f"{config.train_config.resume} was trained with another architecture than this policy's")
    return _create(
        replace(
            draft,
            config=replace(found.config, services=services),
            schema=found.schema,
            architecture=found.architecture,
            stored=found.stored,
            frame_shape=found.frame_shape,
        )
    )


def prepare_resumed(config: FleetConfig, previous: Run, start: Start = start_fresh) -> Run:
    """Rewrites a run's `run.yaml` for its next launch, by the launcher that holds its directory.

    Raises:
        ConfigError: If the run cannot go on with this configuration. Nothing has been written then.
    """
    check_shards(config, previous)
    check_checkpoint(previous)
    check_writable(previous.directory)
    check_trainer(config, start)
    services = claim(config.services, previous.config.services)
    found = preflight(config, start)
    if found.schema.fingerprint != previous.schema.fingerprint:
        raise ConfigError(f"{previous.directory} was trained on other spaces than this environment has")
    if found.architecture != previous.architecture:
        raise ConfigError(f"{previous.directory} was trained with another architecture than this policy's")
    if found.stored != previous.stored:
        raise ConfigError(
            f"{previous.directory} has stored other observations than policy.frozen_encoder asks for now: leave it as "
            "it was, or begin a new run with train_config.resume, which takes the weights only"
        )
    run = replace(previous, config=replace(config, services=services), frame_shape=found.frame_shape)
    (run.directory / RESULT_FILE).unlink(missing_ok=True)
    run.logs.mkdir(exist_ok=True)
    run.write()
    return run


def join(config: FleetConfig, directory: Path, start: Start = start_fresh, of: Of | None = None) -> Run:
    """The run in a directory that several processes set up with one configuration; the first one makes it.

    The arguments are those of `prepare`.

    Raises:
        ConfigError: If the configuration cannot work, or the run in there has another one; names the keys.
    """
    is_there = (directory / RUN_FILE).exists()
    run = read_run(directory) if is_there else prepare(config, directory, start, of)
    config = config if of is None else of(run.schema)
    ours, theirs = replace(run, config=spread(config)).contract(), run.contract()
    differing = [key for key in ours if ours[key] != theirs[key]]
    if differing:
        pairs = "; ".join(f"{key} is {theirs[key]} there and {ours[key]} here" for key in differing)
        raise ConfigError(f"{directory} holds a run with another configuration: {pairs}")
    return run


def configure(config: FleetConfig, directory: Path, start: Start = start_fresh, of: Of | None = None) -> Run:
    """As `join` does, for roles that others start: what those need not agree on becomes as `config` says.

    Addresses stay as they are where `config` leaves ports open.

    Raises:
        ConfigError: As `join` does.
    """
    run = join(config, directory, start, of)
    asked = spread(config if of is None else of(run.schema))
    services = asked.services if are_given(asked.services) else run.config.services
    configured = replace(run, config=replace(asked, services=services))
    if configured != run:
        (run.directory / RESULT_FILE).unlink(missing_ok=True)
        configured.write()
    return configured


@contextmanager
def holding(directory: Path) -> Iterator[None]:
    """Holds a run directory against other launchers on this machine.

    Raises:
        ConfigError: If another one holds it.
    """
    descriptor = hold(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def hold(directory: Path) -> int:
    """Does so until the returned descriptor is closed by all that have it.

    Raises:
        ConfigError: If another launcher holds it.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor, directory)
    except ConfigError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _creating(directory: Path) -> Iterator[None]:
    """Waits for another process that creates the run, as ranks and roles started at once do; that takes a moment."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
        ask("minefleet_learner.trainers", config.trainer_name, start=start)


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


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"{directory} is in use by another launcher; wait until it ends, or stop it") from error


def _create(run: Run) -> Run:
    """Writes the run directory, unless somebody else has just done so; returns what is there."""
    try:
        run.logs.mkdir(parents=True, exist_ok=True)
        with _creating(run.logs):
            if (run.directory / RUN_FILE).exists():
                return read_run(run.directory)
            run.write()
    except OSError as error:
        raise ConfigError(f"cannot write the run directory {run.directory}: {error.strerror}") from error
    return run
