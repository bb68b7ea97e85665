"""Stop conditions of a run, and its best iteration so far."""

from dataclasses import replace

from minefleet.config import FleetConfig
from minefleet.runs.checkpoint import CheckpointState
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics

MIN_EPISODES = 20
"""Episodes without which no mean return is judged."""


def stop_reason(
    config: FleetConfig,
    state: CheckpointState,
    episodes: EpisodeStatistics,
    launch_s: float,
    starved_for: int = 0,
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
