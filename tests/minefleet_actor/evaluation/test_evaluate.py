"""An evaluation acts as the policy was trained: by its statistics of observations, and by the mode unless told."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.minefleet.launch.finding import find
from tests.minefleet_actor import side_env
from tests.minefleet_actor.side_env import FAR, SPREAD, STEPS

from minefleet.config import EnvConfig, FleetConfig, PolicyConfig, WorkerConfig
from minefleet.policies import build
from minefleet.policies.weight_arrays import to_numpy
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.run_yaml import Run
from minefleet.runs.trained_policy_files import inspect_policy
from minefleet_actor.evaluation.evaluate import describe, evaluate, main, parse
from minefleet_actor.evaluation.player import make_player
from minefleet_actor.pool import EnvPool
from minefleet_actor.pool.episode_seed import episode_seed
from minefleet_actor.pool.process_supervisor import timeouts_s

SURENESS = 0.75
"""Of the likelier action."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """With a checkpoint of a policy that knows by how much observations vary, and prefers the right side."""
    config = FleetConfig(
        env=EnvConfig(generator=f"{side_env.__file__}:Side"),
        policy=PolicyConfig(hidden_size=1, hidden_layers=1, normalize_obs=True),
    )
    found = find(config)
    policy = build(config.policy, found.schema)
    state = policy.state_dict()
    certain = np.log(SURENESS / (1 - SURENESS)) / np.tanh(1.0) / 2
    for name, values in {
        "encoder.1.weight": [[1.0]],
        "action_head.linear.weight": [[-certain], [certain]],
        "obs_norm.moments.0.mean": [FAR],
        "obs_norm.moments.0.variance": [SPREAD**2],
        "obs_norm.moments.0.count": 1e6,
    }.items():
        state[name].copy_(torch.tensor(values))
    run = Run(directory=tmp_path, config=config, schema=found.schema, architecture=found.architecture)
    run.write()
    weights = to_numpy(policy)
    write(run.checkpoints, Checkpoint(state=CheckpointState(run_id="r"), policy=weights, optimizer={}, rng={}, run=""))
    return run


def evaluated(run: Run, *flags: str) -> dict[str, Any]:
    (checkpoint,) = (path for path in run.checkpoints.iterdir() if path.name != "latest")
    arguments = parse([str(checkpoint), "--episodes", "50", "--seed", "3", *flags])
    return evaluate(run, inspect_policy(checkpoint), arguments)


def return_of(run: Run, *flags: str) -> float:
    return float(evaluated(run, *flags)["return_mean"])


def test_observations_are_normalised_by_the_statistics_of_the_checkpoint(run: Run) -> None:
    assert return_of(run) == STEPS


def test_evaluation_with_sample_draws_actions_by_their_probability(run: Run) -> None:
    deviation = np.sqrt(SURENESS * (1 - SURENESS) / (50 * STEPS)) * STEPS
    assert abs(return_of(run, "--sample") - SURENESS * STEPS) < 5 * deviation


def slowed(run: Run, slots: Iterable[int], seed: int, **env: Any) -> Run:
    """The run with environments that are slow in some slots of an evaluation."""
    slow_seeds = [episode_seed(seed, 0, slot, 0) for slot in slots]
    return replace(
        run, config=replace(run.config, env=replace(run.config.env, kwargs={"slow_seeds": slow_seeds}, **env))
    )


def test_an_evaluation_plays_the_same_whichever_environment_is_faster(run: Run) -> None:
    first, second = (evaluated(slowed(run, slots, 3), "--sample") for slots in (range(4), range(4, 8)))
    assert first == second


def test_slots_of_an_evaluation_take_tasks_by_number_and_not_by_speed(run: Run) -> None:
    tasks = [str(number) for number in range(10)]
    with make_player(slowed(run, range(4), 0, tasks=dict.fromkeys(tasks, 1.0)), episodes=18, seed=0) as player:
        for first in (0, 18):
            played = [one.record for one in player.play(18, "evaluation")]
            found = {slot: [one.task for one in played if one.stream == f"evaluation-{slot}"] for slot in range(8)}
            assert found == {slot: [tasks[(first + number) % 10] for number in range(slot, 18, 8)] for slot in range(8)}


def test_environments_of_an_evaluation_have_the_time_of_those_of_the_run(run: Run) -> None:
    worker = WorkerConfig(start_timeout_s=1.0, reset_timeout_s=2.0, step_timeout_s=3.0)
    rollout = replace(run.config.rollout_config, worker_config=worker)
    player = make_player(replace(run, config=replace(run.config, rollout_config=rollout)), episodes=1, seed=0)
    pool = player._pool
    assert isinstance(pool, EnvPool)
    assert timeouts_s(pool._config) == timeouts_s(worker)


@pytest.mark.parametrize(("episodes", "words"), [(1, "1 episode: "), (2, "2 episodes: ")])
def test_evaluation_text_counts_episodes_in_singular_and_plural(run: Run, episodes: int, words: str) -> None:
    (checkpoint,) = (path for path in run.checkpoints.iterdir() if path.name != "latest")
    arguments = parse([str(checkpoint), "--episodes", str(episodes), "--seed", "3"])
    assert describe(evaluate(run, inspect_policy(checkpoint), arguments)).startswith(words)


def test_an_evaluation_that_cannot_start_is_refused_as_every_command_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["eval", str(tmp_path / "nowhere")])
    assert main() == 2
    assert capsys.readouterr().err.startswith("minefleet: ")
