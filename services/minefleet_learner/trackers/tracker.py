"""The protocol of trackers, and how they are found by name: ours, and those that installed packages offer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from minefleet.launch.tracker_check import ENTRY_POINTS, check_tracker

BUILT_IN = {
    "tensorboard": "minefleet_learner.trackers.tensorboard_tracker:TensorBoardTracker",
    "wandb": "minefleet_learner.trackers.wandb_tracker:WandbTracker",
    "mlflow": "minefleet_learner.trackers.mlflow_tracker:MlflowTracker",
}
"""Trackers of ours; each is named like the key that switches it on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """The run as a tracker sees it."""

    run_id: str
    """Stays the same when the run is resumed."""
    name: str
    """For people: `logger_config.name`, or the run directory's."""
    project: str
    """`logger_config.project`."""
    directory: Path
    """The run directory, absolute."""
    config: Mapping[str, Any]
    """Every key of the configuration, as nested plain data."""
    step: int
    """Environment steps of the checkpoint that training goes on from. What a killed learner logged at later steps is
    obsolete."""
    numbers_at_step: Sequence[Mapping[str, float]] = ()
    """Logged at this very step already, and still true, one entry per iteration: a tracker that drops whole steps only
    logs them again. Iterations that brought no environment step share one."""


class Tracker(Protocol):
    """Shows one run. All calls come from one thread of the tracker's own, which may wait, hang and raise."""

    def start(self, run: TrackedRun) -> None:
        """Takes a run up, a new or a resumed one. If this raises, the tracker stays off."""
        ...

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Logs the finite numbers of an iteration.

        Args:
            numbers: By name, grouped: "episode/return_mean".
            step: Environment steps so far.
        """
        ...

    def log_video(self, name: str, path: Path, caption: str, step: int) -> None:
        """Logs a video, an MP4 file on this machine. A tracker that shows none inherits this, which does nothing.

        Args:
            name: "video", or "video/TASK".
            path: The file.
            caption: The version that acted, and the return.
            step: Environment steps so far.
        """
        return

    def close(self) -> None:
        """Delivers what is buffered. The process ends soon after, whether this has returned or not."""
        ...


def find(name: str) -> Callable[[], Tracker]:
    """Finds a tracker by its name. The function that is returned imports and makes it.

    Raises:
        ConfigError: If there is none, or its package is not installed.
    """
    check_tracker(name)
    if name in BUILT_IN:
        module, _, cls = BUILT_IN[name].partition(":")
        return lambda: cast(Tracker, getattr(import_module(module), cls)())
    point = next(iter(entry_points(group=ENTRY_POINTS, name=name)))  # One of several, where two packages offer it.
    return lambda: cast(Tracker, point.load()())
