"""Trains on this machine from a program or a notebook, as `minefleet train` does from the command line."""

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from minefleet.cli.commands.train import begin, train_fleet
from minefleet.cli.config_arguments import required
from minefleet.cli.output.summary import Outcome
from minefleet.config.load import Settings, plain_settings, read_settings
from minefleet.core.child_process_start import Start
from minefleet.core.errors import ConfigError, GaveUpError
from minefleet.core.function_references import reference_of
from minefleet.launch.fork_server import ForkServer
from minefleet.monitoring.run_reader import RunResults
from minefleet.runs.default_run_directory import fresh_directory
from minefleet.runs.run_yaml import Run

SECTIONS = ("env", "policy")
"""Those with a `generator`."""
UNNAMED = "run"
"""Begins the name of a run directory whose configuration has no name."""

Config = str | Path | Mapping[str, Any]


def train(config: Config, *overrides: str, run_dir: Path | str | None = None, progress: bool = True) -> RunResults:
    """Trains a policy with all roles on this machine, and returns when the run is over.

    Called by the main thread; a program calls it below `if __name__ == "__main__":`.

    Args:
        config: CONFIG of the command line, or the configuration itself as nested plain data or of OmegaConf. There
            `env.generator` and `policy.generator` may be functions, also ones that were typed into a notebook:
            their source is kept in the run directory.
        overrides: `key=value`, as on the command line.
        run_dir: Where the run goes; by default a new directory below `runs/`.
        progress: Print a line every few seconds.

    Returns:
        The run.

    Raises:
        ConfigError: If the configuration cannot work, or the directory is in use or holds a run.
        GaveUpError: If the run fails.
        KeyboardInterrupt: If a signal stopped the run. Its checkpoint is written.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("call train from the main thread, which gets the signals that stop a run")
    console = Console(file=sys.stdout, force_terminal=False, force_jupyter=False, quiet=not progress)
    name = UNNAMED if isinstance(config, Mapping) else required(str(config), overrides)
    with (
        fresh_directory(name) if run_dir is None else nullcontext(Path(run_dir)) as named,
        closing(ForkServer()) as forks,
    ):
        directory = named.absolute()
        settings = _settings(config, overrides, directory, forks.start)
        words = [] if isinstance(config, Mapping) else [str(config), *overrides]
        return begin(settings, directory, words, partial(train_fleet, console=console), forks.start, _result)


def _settings(config: Config, overrides: Sequence[str], directory: Path, start: Start) -> Settings:
    if not isinstance(config, Mapping):
        return read_settings(str(config), overrides, start)
    rest, generators = dict(config), {}
    for section in SECTIONS:
        keys = dict(rest.get(section) or {})
        if callable(keys.get("generator")):
            generators[section] = reference_of(keys.pop("generator"), directory)
            rest[section] = keys
    return Settings(data=plain_settings(rest, "config", generators), source="config", overrides=overrides)


def _result(run: Run, outcome: Outcome) -> RunResults:
    ending = outcome.ending
    if ending.stopped_by == "failure":
        raise (ConfigError if ending.is_config_error else GaveUpError)(ending.reason)
    if ending.stopped_by == "signal":
        raise KeyboardInterrupt
    return RunResults(run)
