"""Arguments shared by several commands: CONFIG with its overrides, and run directories."""

import argparse
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from minefleet.config.load import name_of
from minefleet.config.yaml_text import presets
from minefleet.core.errors import ConfigError
from minefleet.runs.run import RUN_FILE

RUNS = Path("runs")
"""Run directories lie here unless named, below the current folder."""


def add_settings(parser: argparse.ArgumentParser, *, or_run: bool = False) -> None:
    """Adds `CONFIG [key=value ...]`; CONFIG may be a run directory where the command looks for one."""
    run = ", or a run directory" if or_run else ""
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="CONFIG key=value",
        help=f"a preset ({', '.join(presets())}), a .yaml or a .py file{run}; then any keys to override, as in seed=3",
    )
    parser.add_argument(
        "--map-path",
        action="append",
        default=[],
        type=_pair,
        metavar="OLD=NEW",
        help="paths below OLD, of weights and results, lie below NEW here; may be given several times",
    )


def split(settings: list[str], path_map: Sequence[tuple[str, str]] = ()) -> tuple[str, list[str]]:
    """Parts CONFIG, empty if there is none, from the overrides.

    Args:
        settings: What stands for `CONFIG key=value`.
        path_map: What `--map-path` says; it becomes an override, too.

    Raises:
        ConfigError: If there are several CONFIGs.
    """
    configs = [item for item in settings if "=" not in item]
    if len(configs) > 1:
        raise ConfigError(f"give one CONFIG, got {' and '.join(configs)}; overrides are key=value")
    overrides = [item for item in settings if "=" in item]
    if path_map:
        overrides.append(f"path_map={json.dumps(dict(path_map))}")
    return (configs or [""])[0], overrides


def _pair(text: str) -> tuple[str, str]:
    """OLD and NEW; NEW is taken from the current folder."""
    old, equals, new = text.partition("=")
    if not old or not equals or not new:
        raise argparse.ArgumentTypeError(f"must be OLD=NEW, got {text!r}")
    return old, str(Path(new).expanduser().absolute())


def required(config: str) -> str:
    """Insists on a CONFIG.

    Raises:
        ConfigError: If there is none.
    """
    if not config:
        raise ConfigError(f"give a CONFIG: a preset ({', '.join(presets())}), a .yaml or a .py file")
    return config


def run_directory(named: Path | None, config: str) -> Path:
    """The directory of a run that several processes set up from CONFIG: theirs, or one of its own.

    Raises:
        ConfigError: If there is no CONFIG.
    """
    name = name_of(required(config))
    return named or RUNS / name


def fresh_directory(config: str) -> Path:
    """The default directory of a new run."""
    return RUNS / f"{name_of(config)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def newest_run(prefix: str = "") -> Path:
    """The run that was started last, of those whose directory's name starts with `prefix`.

    Raises:
        ConfigError: If there is none.
    """
    files = list(RUNS.glob(f"{prefix}*/{RUN_FILE}"))
    if not files:
        raise ConfigError(f"there is no run in {RUNS.absolute()}{f' called {prefix}*' if prefix else ''}; name one")
    return max(files, key=lambda path: path.stat().st_mtime).parent
