"""Sets up a run's directory once nothing is wrong with the launch.

The cheap checks come first, then the environment and the policy are tried in a child process.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from minefleet.config import FleetConfig
from minefleet.config.replay_partitioning import spread
from minefleet.core.child_process_start import Start, start_fresh
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.launch.env_policy_check import Of, check_env_and_policy
from minefleet.launch.ports import are_given, claim
from minefleet.launch.run_directory_checks import (
    check_checkpoint,
    check_resume,
    check_shards,
    check_trainer,
    check_vacant,
    check_writable,
)
from minefleet.launch.tracker_check import check_tracker
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run

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
    for tracker in config.logger_config.tracker_names:
        check_tracker(tracker)
    check_trainer(config, start)
    services = claim(config.services)
    found = check_env_and_policy(config, start, None if of is None else lambda schema: spread(of(schema)))
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
    for tracker in config.logger_config.tracker_names:
        check_tracker(tracker)
    check_trainer(config, start)
    services = claim(config.services, previous.config.services)
    found = check_env_and_policy(config, start)
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
def _creating(directory: Path) -> Iterator[None]:
    """Waits for another process that creates the run, as ranks and roles started at once do; that takes a moment."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
