"""Loggers: `metrics.jsonl` and `episodes.csv` always, trackers on request."""

import csv
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from minefleet.monitoring.jsonl_tail import rows_backwards, whole_bytes
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.runs.episode_table import EPISODE_COLUMNS
from minefleet.runs.run_yaml import WHOLE_CONFIG_FILE, Run, to_dict
from minefleet.v1 import episode_pb2
from minefleet_learner.metrics.metrics_row import episode_row, tag
from minefleet_learner.trackers import tracker
from minefleet_learner.trackers.tracker import TrackedRun
from minefleet_learner.trackers.tracker_thread import TrackerThread

logger = logging.getLogger(__name__)

LINE_INTERVAL_S = 60.0
"""Between two lines of the learner's log about its progress."""

Row = Mapping[str, Any]


class JsonLines:
    """A file with one object per line, flushed line by line."""

    def __init__(self, path: Path, *, after_iteration: int) -> None:
        """Opens the file for appending, without the rows of iterations after `after_iteration`."""
        cut_after(path, after_iteration, lambda line: int(json.loads(line)["iteration"]))
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Appends a row; what is not finite becomes null."""
        self._file.write(json.dumps(finite(row), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class EpisodeTable:
    """`episodes.csv`: one line per episode, with a header."""

    def __init__(self, path: Path, *, after_iteration: int) -> None:
        """Opens the file for appending, without the rows of iterations after `after_iteration`."""
        cut_after(path, after_iteration, lambda line: 0 if line.startswith(b"iteration,") else int(line.split(b",")[0]))
        self._file = path.open("a", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, list(EPISODE_COLUMNS), lineterminator="\n")
        if not self._file.tell():
            self._writer.writeheader()

    def write(self, rows: Iterable[Row]) -> None:
        """Appends rows, and flushes once."""
        self._writer.writerows(rows)
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class MetricsLogger:
    """All that a run logs its rows, episodes and videos to."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._next_line_s = -math.inf
        self._rows: JsonLines | None = None
        self._episodes: EpisodeTable | None = None
        self._trackers: list[TrackerThread] = []

    def open(self, state: CheckpointState) -> None:
        """Opens what the configuration asks for; what was written after the checkpoint is cut off.

        Raises:
            ConfigError: If there is no such tracker, or its package is missing.
        """
        run, config = self._run, self._run.config.logger_config
        makers = {name: tracker.find(name) for name in config.tracker_names}
        self._rows = JsonLines(run.metrics, after_iteration=state.iteration)
        self._episodes = EpisodeTable(run.episodes, after_iteration=state.iteration)
        tracked = tracked_run(run, state)
        self._trackers = [TrackerThread(name, make, tracked) for name, make in makers.items()]

    def write(self, row: Row) -> None:
        """Logs the row of an iteration."""
        if self._rows is None:
            return
        self._rows.write(row)
        self._log_line(row)
        numbers = tagged_numbers(row)
        for each in self._trackers:
            each.put(lambda one: one.log(numbers, row["env_steps"]))

    def _log_line(self, row: Row) -> None:
        """Says once a minute how far the training is: a learner that serves alone has no terminal."""
        if self._clock() < self._next_line_s:
            return
        self._next_line_s = self._clock() + LINE_INTERVAL_S
        forms = {"iteration": "d", "episode_return_mean": ".2f", "sps": ".0f", "policy_version": "d"}
        shown = ["-" if row.get(name) is None else format(row[name], form) for name, form in forms.items()]
        logger.info("iteration %s, return %s, %s steps/s, version %s", *shown)

    def write_episodes(self, records: Iterable[episode_pb2.EpisodeRecord], state: CheckpointState) -> None:
        """Logs episodes that the learner has read, and shows the videos among them."""
        known = list(records)
        if self._episodes is not None and known:
            self._episodes.write(episode_row(record, state) for record in known)
        for record in known:
            if record.HasField("video"):
                self._show(record, state.env_steps)

    def _show(self, episode: episode_pb2.EpisodeRecord, env_steps: int) -> None:
        """Shows the video of an episode where this process can read the file."""
        video, is_here = episode.video, os.access(episode.video.path, os.R_OK)
        where = "" if is_here else f" on {video.host}, which this learner cannot read"
        logger.info("an episode of version %d was filmed: %s%s", episode.policy_version, video.path, where)
        name = f"video/{episode.task}" if episode.task else "video"
        caption = f"version {episode.policy_version}, return {episode.episode_return:.2f} {episode.task}".rstrip()
        path = Path(video.path)
        for each in self._trackers if is_here else ():
            each.put(lambda one: one.log_video(name, path, caption, env_steps))

    def close(self) -> None:
        """Closes all; the second time does nothing. All trackers together get `services.drain_s`."""
        for file in (self._rows, self._episodes):
            if file is not None:
                file.close()
        for each in self._trackers:
            each.end()
        until = time.monotonic() + self._run.config.services.drain_s
        for each in self._trackers:
            each.join(max(0.0, until - time.monotonic()))
        self._rows, self._episodes, self._trackers = None, None, []


def tracked_run(run: Run, state: CheckpointState) -> TrackedRun:
    """The run for trackers, from a checkpoint on."""
    text = run.directory / WHOLE_CONFIG_FILE
    return TrackedRun(
        run_id=state.run_id,
        name=run.config.logger_config.name or run.directory.name,
        project=run.config.logger_config.project,
        directory=run.directory,
        config=to_dict(run.config) | ({"whole_config": text.read_text(encoding="utf-8")} if text.exists() else {}),
        step=state.env_steps,
        numbers_at_step=[tagged_numbers(row) for row in rows_at_end(run.metrics, state.env_steps)],
    )


def rows_at_end(path: Path, env_steps: int) -> Sequence[Row]:
    """The last rows of a file that have this number of environment steps, in order."""
    with path.open("rb") as file:
        rows = (row for _, row in rows_backwards(file, 0, whole_bytes(file)))
        return [*takewhile(lambda row: row["env_steps"] == env_steps, rows)][::-1]


def cut_after(path: Path, iteration: int, iteration_of: Callable[[bytes], int]) -> None:
    """Cuts off the rows of later iterations, and a line that a crash left unfinished.

    Args:
        path: A file with one row per line, in the order of iterations; it may be missing.
        iteration: The last one whose rows stay.
        iteration_of: Reads the iteration from a line; raises `ValueError` for one that is not whole.
    """
    if not path.exists():
        return
    end = 0
    with path.open("r+b") as file:
        for line in file:
            try:
                is_kept = line.endswith(b"\n") and iteration_of(line) <= iteration
            except ValueError:
                is_kept = False
            if not is_kept:
                break
            end += len(line)
        file.truncate(end)


def finite(value: Any) -> Any:
    """The same plain data with None for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tagged_numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row by their names for trackers."""
    return {tag(name): number for name, number in flat_numbers(row).items()}


def flat_numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row; nested names joined by '/', empty ones left out. Texts and lists are left out."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {"/".join(filter(None, (name, key))): number for key, number in flat_numbers(value).items()}
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[name] = value
    return flat
