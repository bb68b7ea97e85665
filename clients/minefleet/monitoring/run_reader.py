"""The results of a run, for programs and notebooks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minefleet.config import FleetConfig
from minefleet.monitoring import plot
from minefleet.monitoring.journal import read_journal
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.runs.checkpoint_files import numbered
from minefleet.runs.episode_table import read_episodes
from minefleet.runs.run_yaml import Run, read_run

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunResults:
    """A run that is under way or over; every call reads the files as they are then."""

    run: Run

    def __repr__(self) -> str:
        return f"<run in {self.directory}>"

    @property
    def directory(self) -> Path:
        """The run directory, absolute."""
        return self.run.directory

    @property
    def config(self) -> FleetConfig:
        """The run's configuration, every key resolved."""
        return self.run.config

    def metrics(self) -> list[Row]:
        """One row per iteration, oldest first; `docs/monitoring.md` has their keys."""
        return read_rows(self.run.metrics)

    def table(self) -> Any:
        """The metrics as a `pandas.DataFrame`, keys of nested dicts joined by dots.

        Raises:
            ImportError: If pandas is missing.
        """
        import pandas

        return pandas.json_normalize(self.metrics())

    def episodes(self) -> list[Row]:
        """One row per episode, oldest first, evaluations included; `docs/trackers.md` has their keys."""
        return read_episodes(self.run.episodes)

    def journal(self) -> list[Row]:
        """The starts of the run, the restarts of its roles and the changes of its keys, oldest first."""
        return read_journal(self.directory)

    def curve(self) -> Path | None:
        """Draws the return over environment steps; returns the PNG file, or None before an episode has ended.

        Raises:
            ImportError: If matplotlib is missing.
        """
        return plot.draw(self.run)

    def checkpoints(self) -> list[Path]:
        """The directories of the checkpoints that are kept, oldest first; `minefleet.load` takes each."""
        place = self.run.checkpoints
        return [path for _, path in sorted(numbered(place).items())] if place.is_dir() else []


def open_run(run_dir: Path | str) -> RunResults:
    """Opens a run directory.

    Raises:
        ConfigError: If there is no run in it.
    """
    return RunResults(read_run(Path(run_dir)))
