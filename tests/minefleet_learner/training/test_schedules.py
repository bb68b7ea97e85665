from dataclasses import replace

import pytest

from minefleet.config import FleetConfig, StopConfig, TrainConfig
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.v1.episode_pb2 import EpisodeRecord
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics
from minefleet_learner.metrics.stop_rule import stop_reason, with_best
from minefleet_learner.training.schedules import progress

CONFIG = FleetConfig(
    train_config=TrainConfig(num_iterations=100), stop=StopConfig(env_steps=1000, minutes=2, episode_return=5.0)
)


def episodes(count: int, result: float) -> EpisodeStatistics:
    statistics = EpisodeStatistics()
    for _ in range(count):
        statistics.add(EpisodeRecord(episode_return=result))
    return statistics


@pytest.mark.parametrize(
    ("iteration", "env_steps", "share"), [(0, 0, 0.0), (50, 100, 0.5), (10, 800, 0.8), (200, 0, 1.0), (0, 9999, 1.0)]
)
def test_progress_is_that_of_the_condition_which_is_further(iteration: int, env_steps: int, share: float) -> None:
    assert progress(CONFIG, iteration, env_steps) == pytest.approx(share)


def test_progress_without_a_step_limit_is_that_of_the_iterations() -> None:
    assert progress(replace(CONFIG, stop=StopConfig()), 50, 10**9) == 0.5


@pytest.mark.parametrize(
    ("iteration", "env_steps", "finished", "result", "launch_s", "reason"),
    [
        (99, 999, 100, 4.9, 119.0, ""),
        (100, 0, 0, 0.0, 0.0, "num_iterations"),
        (0, 1000, 0, 0.0, 0.0, "env_steps"),
        (0, 0, 0, 0.0, 120.0, "minutes"),
        (0, 0, 20, 5.0, 0.0, "episode_return"),
        (0, 0, 19, 5.0, 0.0, ""),
    ],
)
def test_stop_reason_names_each_condition_that_ends_the_run(
    iteration: int, env_steps: int, finished: int, result: float, launch_s: float, reason: str
) -> None:
    state = CheckpointState(run_id="r", iteration=iteration, env_steps=env_steps)
    assert stop_reason(CONFIG, state, episodes(finished, result), launch_s) == reason


def test_best_return_is_updated_by_a_higher_mean_once_enough_episodes_finished() -> None:
    state = CheckpointState(run_id="r", iteration=1)
    assert with_best(state, episodes(19, 9.0)) == state
    state = with_best(state, episodes(20, 5.0))
    assert (state.best_return, state.best_iteration) == (5.0, 1)
    later = replace(state, iteration=2)
    assert with_best(later, episodes(30, 5.0)) == later
    assert with_best(later, episodes(30, 6.0)).best_iteration == 2


def test_stop_conditions_that_are_switched_off_never_end_the_run() -> None:
    config = replace(CONFIG, stop=StopConfig())
    state = CheckpointState(run_id="r", env_steps=10**9)
    assert stop_reason(config, state, episodes(100, 1e9), 1e9, starved_for=10**9) == ""


def test_stop_reason_names_a_task_that_has_starved_for_long() -> None:
    config, state = replace(CONFIG, stop=StopConfig(starved_iterations=5)), CheckpointState(run_id="r")
    assert stop_reason(config, state, episodes(0, 0.0), 0.0, starved_for=4) == ""
    assert stop_reason(config, state, episodes(0, 0.0), 0.0, starved_for=5) == "starved_iterations"
