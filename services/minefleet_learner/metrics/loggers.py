"""Loggers: `metrics.jsonl` always, wandb and TensorBoard on request."""

import importlib
import json
import logging
import math
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from minefleet.core.errors import ConfigError
from minefleet.core.files import write_whole
from minefleet.runs.run import WHOLE_CONFIG_FILE, Run, to_dict
from minefleet.v1 import episode_pb2

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]

EVALUATIONS_FILE = "episodes.jsonl"
WANDB_HOST = "api.wandb.ai"


class Sink(Protocol):
    """Logs one row per iteration."""

    def write(self, row: Row) -> None:
        """Logs a row: numbers by name; None where there is none yet; mappings of numbers."""

    def close(self) -> None:
        """Writes what is buffered."""


class JsonLines:
    """A file with one object per line, flushed line by line."""

    def __init__(self, path: Path, *, after_iteration: int) -> None:
        """Opens the file for appending, without the rows of iterations after `after_iteration`."""
        keep_until(path, after_iteration)
        self._file = path.open("a")

    def write(self, row: Row) -> None:
        """Appends a row; what is not finite becomes null."""
        self._file.write(json.dumps(finite(row), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files; the axis is `env_steps`."""

    def __init__(self, run: Run) -> None:
        writer = import_package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(run.directory / "tensorboard"))

    def write(self, row: Row) -> None:
        """Adds a row's numbers."""
        for name, value in flat_numbers(row).items():
            self._writer.add_scalar(name, value, row["env_steps"])

    def close(self) -> None:
        """Writes what is buffered."""
        self._writer.close()


class Wandb:
    """A wandb run; offline where there is no key. The axis is `env_steps`."""

    def __init__(self, run: Run, run_id: str) -> None:
        self._run = import_package("wandb", "wandb").init(**wandb_arguments(run, run_id))
        self._video = import_package("wandb", "wandb").Video
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, row: Row) -> None:
        """Logs a row's numbers."""
        self._run.log(flat_numbers(row))

    def show(self, episode: episode_pb2.EpisodeRecord, env_steps: int) -> None:
        """Logs the video of an episode."""
        caption = f"version {episode.policy_version}, return {episode.episode_return:.2f} {episode.task}".rstrip()
        shown = self._video(episode.video.path, caption=caption, format="mp4")
        self._run.log({f"video/{episode.task}" if episode.task else "video": shown, "env_steps": env_steps})

    def close(self) -> None:
        """Ends the wandb run."""
        self._run.finish()


def wandb_arguments(run: Run, run_id: str) -> dict[str, Any]:
    """The keyword arguments of `wandb.init`."""
    logger_config = run.config.logger_config
    text = run.directory / WHOLE_CONFIG_FILE
    return {
        "project": logger_config.project,
        "name": logger_config.name or run.directory.name,
        "id": run_id,
        "resume": "allow",
        "dir": str(run.directory),
        "config": to_dict(run.config) | ({"whole_config": text.read_text()} if text.exists() else {}),
        "mode": os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline"),
        **logger_config.init,
    }


class MetricsLogger:
    """All the sinks of a run: its rows, and its evaluations in a file of their own."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rows: list[Sink] = []
        self._evaluations: list[Sink] = []
        self._screens: list[Wandb] = []

    def open(self, run_id: str, iteration: int) -> None:
        """Opens what the configuration asks for; what was written after `iteration` is cut off.

        Raises:
            ConfigError: If a package is missing.
        """
        run, wanted = self._run, self._run.config.logger_config
        if wanted.tensorboard:
            self._rows.append(TensorBoard(run))
        if wanted.wandb:
            self._screens.append(Wandb(run, run_id))
            self._rows += self._screens
        self._rows.append(JsonLines(run.metrics, after_iteration=iteration))
        self._evaluations.append(JsonLines(run.directory / EVALUATIONS_FILE, after_iteration=iteration))

    def write(self, row: Row) -> None:
        """Logs the row of an iteration."""
        for sink in self._rows:
            sink.write(row)

    def write_evaluation(self, row: Row) -> None:
        """Logs the row of an evaluation episode."""
        for sink in self._evaluations:
            sink.write(row)

    def show(self, episode: episode_pb2.EpisodeRecord, env_steps: int) -> None:
        """Shows the video of an episode where the configuration asks for it and this process can read the file."""
        video, is_here = episode.video, os.access(episode.video.path, os.R_OK)
        where = "" if is_here else f" on {video.host}, which this learner cannot read"
        logger.info("an episode of version %d was filmed: %s%s", episode.policy_version, video.path, where)
        for screen in self._screens if is_here else ():
            screen.show(episode, env_steps)

    def close(self) -> None:
        """Closes all; the second time does nothing."""
        for sink in (*self._rows, *self._evaluations):
            sink.close()
        self._rows, self._evaluations, self._screens = [], [], []


def keep_until(path: Path, iteration: int) -> None:
    """Cuts off the rows of later iterations, and a line that a crash left unfinished."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if row["iteration"] > iteration:
            break
        kept.append(line + "\n")
    write_whole(path, "".join(kept))


def finite(value: Any) -> Any:
    """The same plain data with None for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat_numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row; nested names joined by '/'."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{key}": number for key, number in flat_numbers(value).items()}
        elif value is not None and math.isfinite(value):
            flat[name] = value
    return flat


def import_package(name: str, package: str) -> Any:
    """Imports a module of an optional package.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"logger_config.{package}=true needs the package: pip install 'minefleet[{package}]'"
        ) from error


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
