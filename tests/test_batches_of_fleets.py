"""Whole fleets whose environments step in batches."""

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from tests.conftest import Fleet, assert_counters_never_go_back

from minefleet.monitoring.env_death_groups import read_deaths
from minefleet.runs.episode_table import read_episodes

pytestmark = pytest.mark.fleet

BATCHED = ("env.id=", "env.batched=true", "env.generator=gymnasium:make_vec", "env.kwargs={id: CartPole-v1}")
SCARCE = "rollout_config.replay_buffer_config.max_staleness=0"
"""Replay has room for one iteration: a chunk of each slot."""


def env_processes(actor: int) -> list[psutil.Process]:
    """The processes that run an actor's environments."""
    below = psutil.Process(actor).children(recursive=True)
    return [process for process in below if "serve" in process.cmdline()]


def test_run_in_one_process_with_batches_trains_with_scarce_grants(train: Callable[..., Fleet]) -> None:
    fleet = train("cartpole", "--serial", *BATCHED, SCARCE, "stop.env_steps=4000", "seed=4")
    assert fleet.finish()["stopped_by"] == "env_steps"
    assert fleet.rows()[-1]["trained_steps"] > 0.5 * fleet.rows()[-1]["env_steps"]


def test_fleet_of_batches_trains_with_scarce_grants_and_is_evaluated(
    train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]]
) -> None:
    fleet = train("cartpole", *BATCHED, SCARCE, "stop.env_steps=8000", "seed=4", "eval_interval=5", "eval_episodes=3")
    fleet.wait_for_env_steps(2000)
    (victim,) = env_processes(fleet.pid("actor-0"))
    os.kill(victim.pid, signal.SIGKILL)
    result, rows = fleet.finish(), fleet.rows()

    assert result["stopped_by"] == "env_steps"
    assert_counters_never_go_back(rows)
    assert rows[-1]["trained_steps"] > 0.5 * rows[-1]["env_steps"]
    played = read_episodes(fleet.directory / "episodes.csv")
    assert {row["failure"] for row in played} == {"", "exit"}
    assert sum(row["failure"] == "exit" for row in played) == 8
    (death,) = read_deaths(fleet.directory)  # Of all rows at once.
    assert (death["group"], death["cannot_repeat"]) == ("SIGKILL", "it is one of a batch")
    evaluations = [(row["stream"], row["episode"]) for row in played if row["evaluation"]]
    assert evaluations and len(evaluations) == len(set(evaluations)) and len(evaluations) % 3 == 0
    assert evaluate(fleet.directory, 6)["episodes"] == 6
