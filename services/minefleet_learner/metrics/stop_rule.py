"""Stop conditions of a run, and its best iteration so far."""

import threading
from collections.abc import Callable
from dataclasses import replace

from minefleet.config import FleetConfig
from minefleet.launch.torchrun_variables import launch_age_s
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics

MIN_EPISODES = 20
"""Episodes without which no mean return is judged."""


class Deadline:
    """Ends the wait for fragments when the time of a launch is over: none may ever come."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._timer = threading.Timer(0, end)

    def set(self, minutes: float) -> None:
        """Calls `end` when the launch is so old; never, for 0."""
        self.cancel()
        if minutes:
            self._timer = threading.Timer(60 * minutes - launch_age_s(), self._end)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Calls it no more."""
        self._timer.cancel()


def stop_reason(
    config: FleetConfig, state: CheckpointState, episodes: EpisodeStatistics, launch_s: float, starved_for: int = 0
) -> str:
    """Names the condition that ends the run, or "" while it goes on.

    Args:
        config: The conditions.
        state: Where training stands.
        episodes: Of the training; at least `MIN_EPISODES` are needed to judge the return.
        launch_s: Seconds since this launch, restarts of the learner included.
        starved_for: Iterations in a row in which a task has starved.
    """
    stop = config.stop
    mean = _judged_return(episodes)
    if stop.episode_return is not None and mean is not None and mean >= stop.episode_return:
        return "episode_return"
    if stop.minutes and launch_s >= 60 * stop.minutes:
        return "minutes"
    if stop.starved_iterations and starved_for >= stop.starved_iterations:
        return "starved_iterations"
    return config.spent(state.iteration, state.env_steps)


def with_best(state: CheckpointState, episodes: EpisodeStatistics) -> CheckpointState:
    """The same state, and this iteration as the best so far if it is."""
    mean = _judged_return(episodes)
    if mean is None or (state.best_return is not None and mean <= state.best_return):
        return state
    return replace(state, best_return=mean, best_iteration=state.iteration)


def _judged_return(episodes: EpisodeStatistics) -> float | None:
    return episodes.return_mean if episodes.total.finished >= MIN_EPISODES else None
