"""Trackers: programs that show a run elsewhere, as wandb and TensorBoard do. One of your own begins at `Tracker`."""

from minefleet_learner.trackers.tracker import TrackedRun, Tracker

__all__ = ["TrackedRun", "Tracker"]
