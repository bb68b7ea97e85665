"""`minefleet train`: one command, one run; at the end what it came to, as text in a terminal, else as one JSON line.

Everything but that goes to stderr.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from minefleet.cli.arguments_per_command import NEWEST
from minefleet.cli.config_arguments import is_override, required, split
from minefleet.cli.output.lossy_stderr import outlived
from minefleet.cli.output.periodic_plot import PeriodicPlot
from minefleet.cli.output.progress import Progress, show_checking
from minefleet.cli.output.stall import Stall
from minefleet.cli.output.summary import BOUNDS, Outcome, bounds, describe_end, pause_of, summarise
from minefleet.config import FleetConfig
from minefleet.config.live_settings import settings_of, value_of, with_settings
from minefleet.config.load import Settings, merge, name_of, read_settings
from minefleet.config.overrides import read_overrides
from minefleet.config.replay_partitioning import NUM_SHARDS
from minefleet.config.train import AUTO
from minefleet.core.child_process_start import Start, start_fresh
from minefleet.core.errors import EXIT_AGAIN, EXIT_CONFIG, EXIT_FAILED, EXIT_SIGNAL, ConfigError
from minefleet.core.parent_death import die_with_launcher, tied
from minefleet.core.repro_command import reproducible
from minefleet.launch.fork_server import ForkServer
from minefleet.launch.role_process import last_record, lines_since, quoted, role_command
from minefleet.launch.role_supervisor import TICK_S, LaunchEnd, RoleSupervisor, supervisor
from minefleet.launch.run_directory_setup import prepare, prepare_resumed
from minefleet.launch.run_lock import holding
from minefleet.launch.torchrun_variables import is_rank
from minefleet.monitoring.journal import append, read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import SET, ask
from minefleet.monitoring.live_settings_by_iteration import set_lines, settings_of_iteration, settings_to_come
from minefleet.monitoring.rollback_requests import settle_rollbacks
from minefleet.runs.checkpoint_files import CheckpointState, newest, read_state
from minefleet.runs.default_run_directory import fresh_directory, newest_run
from minefleet.runs.run_yaml import RUN_FILE, Run, flat_keys, read_run, to_dict

IN_ORDER = [
    "rollout_config.replay_buffer_config.max_staleness=0",
    "rollout_config.canary_share=0",
    "train_config.prefetch_batches=0",
    f"{NUM_SHARDS}=1",
]
"""Settings of `--serial`: what acts is always what was trained last, and replay is one."""
SERIAL = "serial"
"""The process of `--serial`, and its log."""


Finished = TypeVar("Finished")
Train = Callable[[Run, Start], Outcome]
Finish = Callable[[Run, Outcome], Finished]
Checking = Callable[[], AbstractContextManager[object]]


def run(arguments: argparse.Namespace) -> int:
    """Prepares a new run or an old one, and trains. Where a sweep started it, it ends with that."""
    die_with_launcher()
    go = _begin if arguments.resume is None else _resume
    end = partial(finish, as_json=arguments.json)
    if arguments.serial:
        return go(arguments, start_fresh, end)
    with closing(ForkServer()) as forks:
        return go(arguments, forks.start, end)


def _begin(arguments: argparse.Namespace, start: Start, end: Finish[int]) -> int:
    train: Train = train_serially if arguments.serial else train_fleet
    config, overrides = split(arguments.settings, arguments.map_path)
    named = arguments.run_dir
    with nullcontext(named) if named else fresh_directory(required(config, overrides)) as directory:
        settings = read_settings(config, overrides + (IN_ORDER if arguments.serial else []), start)
        check_serial(settings.of(), arguments)
        if arguments.repeat is not None:
            train = _repeating(arguments.repeat, settings.of(), train)
        return begin(settings, directory, [config, *overrides], train, start, end, show_checking)


def _repeating(source: Path, config: FleetConfig, train: Train) -> Train:
    """Trains with the keys that `minefleet set` changed in another run, at its iterations."""
    read_run(source)
    lines = set_lines(read_whole_journal(source))
    with_settings(config, settings_of_iteration(lines, math.inf))

    def train_again(run: Run, start: Start) -> Outcome:
        for line in lines:
            append(run.directory, SET, line, id=line["id"], why=line.get("why"), keys=line.get("keys"))
        return train(run, start)

    return train_again


def begin(
    settings: Settings,
    directory: Path,
    words: list[str],
    train: Train,
    start: Start,
    end: Finish[Finished],
    checking: Checking = nullcontext,
) -> Finished:
    """Trains in a new run directory, or goes on with the run there, where `train_config.resume` is `auto`.

    Args:
        settings: The configuration.
        directory: Of the run.
        words: CONFIG and overrides for the command that plays an environment that fails.
        train: Runs the roles.
        start: Starts processes.
        end: Makes the result of the run and its end, while the directory is held.
        checking: Entered while the environment is checked.

    Raises:
        ConfigError: If the configuration or the directory cannot be used.
    """
    loaded = settings.of()
    if loaded.train_config.resume == AUTO and (directory / RUN_FILE).exists():
        return _go_on(directory, lambda run: settings.of(run.schema), words, train, start, end, checking)
    with checking(), reproducible(words):
        fresh = prepare(loaded, directory, start, settings.of)
    with holding(fresh.directory):
        return end(fresh, train(fresh, start))


def check_serial(config: FleetConfig, arguments: argparse.Namespace) -> None:
    """Refuses what one process cannot do.

    Raises:
        ConfigError: Names the key.
    """
    if arguments.serial and config.env.python:
        raise ConfigError(f"--serial plays in the fleet's own process; it cannot with env.python={config.env.python}")
    if arguments.serial and config.train_config.num_workers > 1:
        ranks = config.train_config.num_workers
        raise ConfigError(f"--serial trains in one process; it cannot with train_config.num_workers={ranks}")


def train_fleet(run: Run, start: Start, console: Console | None = None) -> Outcome:
    """Runs all roles as processes and shows how it goes: on stderr, or another console."""
    began_s = time.monotonic()
    progress = Progress(run, console or Console(stderr=True))
    curve, stall = PeriodicPlot(run.directory, progress.say), Stall(run.directory, progress.say)

    @outlived(progress.say)
    def tick() -> None:
        iterated = progress.tick(_roles(fleet))
        is_training = any(is_rank(child.name) and child.is_alive for child in fleet.children)
        stall.tick(iterated=iterated or not is_training)
        curve.tick()

    fleet = supervisor(run, report=progress.say, tick=tick, start=start)
    with progress:
        progress.say(f"training in {run.directory}")
        ending = fleet.run()
    stall.close()
    curve.finish()
    return Outcome(ending=ending, wall_s=time.monotonic() - began_s)


def train_serially(run: Run, started_by: Start) -> Outcome:
    """Runs all roles in one process and shows how it goes; that process has stdin and stdout, for a debugger."""
    began_s, log, command = time.monotonic(), run.logs / f"{SERIAL}.log", role_command(SERIAL, run.directory)
    progress = Progress(run, Console(stderr=True), is_shared=True)
    curve = PeriodicPlot(run.directory, progress.say)

    @outlived(progress.say)
    def tick() -> None:
        progress.tick("all roles, in one process")
        curve.tick()

    with log.open("ab") as stderr, progress:
        start = stderr.tell()
        progress.say(f"training in {run.directory}")
        with subprocess.Popen(command, env=os.environ | tied(), stderr=stderr) as child:
            signal.signal(signal.SIGTERM, lambda *_: child.terminate())
            signal.signal(signal.SIGINT, lambda *_: None)  # The terminal sends it to the child as well.
            while child.returncode is None:
                tick()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(TICK_S)
    curve.finish()
    if child.returncode == EXIT_AGAIN:
        return replace(train_serially(run, started_by), wall_s=time.monotonic() - began_s)
    ending = LaunchEnd(stopped_by="learner")
    if (code := child.returncode) != 0:
        words = "\n".join(last_record(lines_since(log, start)))
        reason = f"it ended with {code}; see {log}:{quoted(words)}"
        ending = LaunchEnd(stopped_by="failure", reason=reason, is_config_error=code == EXIT_CONFIG)
    return Outcome(ending=ending, wall_s=time.monotonic() - began_s)


def finish(run: Run, outcome: Outcome, *, as_json: bool = False) -> int:
    """Prints the end of the run on stdout, the reason of a failure on stderr; returns the exit code.

    A terminal gets text, unless `as_json`; everything else gets one line of JSON.
    """
    ending, summary = outcome.ending, summarise(run, outcome)
    failed = ending.stopped_by == "failure"
    if failed:
        print(f"minefleet: {ending.reason}", file=sys.stderr)
    is_text = sys.stdout is not None and sys.stdout.isatty() and not as_json
    print(describe_end(run, summary) if is_text else json.dumps(summary), flush=True)
    if failed:
        return EXIT_CONFIG if ending.is_config_error else EXIT_FAILED
    if summary["stopped_by"] == "pause":
        print(f"minefleet: it ended while training was paused: {pause_of(run)}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_SIGNAL if summary["stopped_by"] == "signal" else 0


def _resume(arguments: argparse.Namespace, start: Start, end: Finish[int]) -> int:
    """Goes on with a run. What follows `--resume` may be an override already, unless there is such a folder."""
    asked, settings = arguments.resume, list(arguments.settings)
    if is_override(asked) and not Path(asked).exists():
        asked, settings = NEWEST, [asked, *settings]
    config, overrides = split(settings, arguments.map_path)
    if asked and config:
        raise ConfigError(f"--resume {asked} goes on with that run's own configuration; leave CONFIG {config} out")
    if arguments.repeat is not None:
        raise ConfigError(f"--repeat {arguments.repeat} is for a new run: one that goes on has a journal of its own")
    directory = Path(asked) if asked else arguments.run_dir or newest_run(name_of(config))

    def changed(previous: Run) -> FleetConfig:
        merged = merge(to_dict(previous.config), str(directory / RUN_FILE), overrides)
        check_serial(merged, arguments)
        before, now = flat_keys(to_dict(previous.config)), flat_keys(to_dict(merged))
        changes = [f"{key}={now[key]} (was {before.get(key)})" for key in now if now[key] != before.get(key)]
        if changes:
            print(f"minefleet: changed: {', '.join(changes)}", file=sys.stderr)
        return merged

    train = train_serially if arguments.serial else train_fleet
    given = settings_of(read_overrides(overrides))
    return _go_on(directory, changed, [str(directory), *overrides], train, start, end, show_checking, given)


def _go_on(
    directory: Path,
    config_of: Callable[[Run], FleetConfig],
    words: list[str],
    train: Train,
    start: Start,
    end: Finish[Finished],
    checking: Checking,
    given: Collection[str] = (),
) -> Finished:
    """Goes on with the run in a directory, configured by what it was; `given` keys count more than what was set."""
    read_run(directory)
    with holding(directory):
        previous = read_run(directory)
        config = config_of(previous)
        settle_rollbacks(previous)
        settings = settings_to_come(config, read_whole_journal(directory))
        anew = {
            key: value
            for key in settings
            if (value := value_of(config, key)) != settings[key]
            and (key in given or value != value_of(previous.config, key))
        }
        live = with_settings(config, settings | anew)
        if reached := _reached(live, previous):
            bound = BOUNDS[reached].format(bounds(live)[reached])
            print(f"minefleet: {directory} has trained to its {bound}; give a larger one to go on", file=sys.stderr)
            return end(previous, Outcome(ending=LaunchEnd(stopped_by="learner"), wall_s=0.0, reached=reached))
        with checking(), reproducible(words):
            resumed = prepare_resumed(config, previous, start)
        if anew:
            ask(directory, "--resume", set=anew)
        return end(resumed, train(resumed, start))


def _reached(config: FleetConfig, run: Run) -> str:
    """The bound that the run's newest checkpoint has reached, or ""."""
    place = newest(run.checkpoints)
    state = read_state(place) if place is not None else CheckpointState(run_id="")
    return config.spent(state.iteration, state.env_steps)


def _roles(fleet: RoleSupervisor) -> str:
    up = [child.name for child in fleet.children if child.is_alive]
    actors = [name for name in up if name.startswith("actor-")]
    others = [name for name in up if name not in actors]
    return ", ".join([*others, *(actors if len(actors) < 2 else [f"{len(actors)} actors"])])
