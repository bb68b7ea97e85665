"""An agent acts as the evaluator does, in the environment's own words, with memory and masks."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict, Discrete
from tests.minefleet.launch.finding import find
from tests.minefleet.policies import logging_env
from tests.minefleet.policies.logging_env import STEPS, Logging, logged

import minefleet
from minefleet.config import EnvConfig, FleetConfig, PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.policies import build
from minefleet.policies.weight_arrays import architecture, to_numpy
from minefleet.rpc.weights.manifest import entries_of
from minefleet.rpc.weights.version_info import VersionInfo
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.checkpoint_retention import prune
from minefleet.runs.exported_version import export
from minefleet.runs.run_yaml import RUN_FILE, Run
from minefleet.runs.trained_policy_files import read_trained
from minefleet_env.errors import EnvError

EPISODES = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With a checkpoint of a policy that has memory and large weights, so that it does different things."""
    directory = tmp_path_factory.mktemp("run")
    (directory / "log").mkdir()
    config = FleetConfig(
        env=EnvConfig(generator=f"{logging_env.__file__}:Logging", kwargs={"folder": str(directory / "log")}),
        policy=PolicyConfig(hidden_size=16, hidden_layers=1, gru_size=8),
    )
    found = find(config)
    run = Run(directory=directory, config=config, schema=found.schema, architecture=found.architecture)
    run.write()
    torch.manual_seed(1)
    policy = build(config.policy, found.schema)
    with torch.no_grad():
        for parameter in policy.action_head.parameters():
            parameter.mul_(100)
    for path in (directory / "log").iterdir():
        path.unlink()
    checkpoint(run, to_numpy(policy))
    return run


def checkpoint(run: Run, weights: Any, iteration: int = 0) -> Path:
    state = CheckpointState(run_id="r", version=7, iteration=iteration)
    text = (run.directory / RUN_FILE).read_text()
    return write(run.checkpoints, Checkpoint(state=state, policy=weights, optimizer={}, rng={}, run=text))


def obs_of(seed: int) -> Any:
    return Logging().reset(seed=seed)[0]


def same(ours: Any, theirs: Any) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_agent_greedy_actions_equal_those_of_eval_on_the_same_observations(
    run: Run, evaluate: Callable[..., dict[str, Any]]
) -> None:
    summary = evaluate(run.directory, EPISODES, "--seed", "3")
    assert (summary["return_mean"], summary["policy_version"]) == (STEPS, 7)
    steps = logged(run.directory / "log")
    assert len(steps) == EPISODES * STEPS and sum(first for first, _, _ in steps) == EPISODES
    agent = minefleet.load(run.directory)
    for first, obs, (category, box, binary) in steps:
        ours = agent.act(obs, first=first)
        assert (ours[0], ours[2].tolist()) == (category, binary)
        np.testing.assert_allclose(ours[1], box, rtol=1e-4, atol=1e-6)
    assert len({str(action) for _, _, action in steps}) > STEPS, "the policy does not react to what it sees"


@pytest.mark.parametrize("greedy", [True, False])
def test_an_agent_in_a_loop_does_what_the_space_and_the_mask_allow(run: Run, greedy: bool) -> None:
    agent = minefleet.load(run.directory)
    env = Logging()  # It asserts what it is given.
    obs, over = env.reset(seed=5)[0], False
    for _ in range(20 * STEPS):
        obs, _, _, over, _ = env.step(agent.act(obs, greedy=greedy))
        if over:
            agent.reset()
            obs = env.reset()[0]


def test_agent_keeps_its_memory_until_it_is_reset(run: Run) -> None:
    agent, obs = minefleet.load(run.directory), obs_of(1)
    first, second = agent.act(obs), agent.act(obs)
    assert not same(first, second)
    assert same(agent.act(obs, first=True), first) and same(agent.act(obs), second)
    agent.reset()
    assert same(agent.act(obs), first)


def test_agent_samples_are_those_of_its_seed(run: Run) -> None:
    one, other, third = (minefleet.load(run.directory, seed=seed) for seed in (1, 1, 2))
    drawn = [[agent.act(obs_of(1), greedy=False)[1] for _ in range(5)] for agent in (one, other, third)]
    assert same(drawn[0], drawn[1]) and not same(drawn[0], drawn[2])


def test_agent_action_is_not_overwritten_by_a_later_one(run: Run) -> None:
    agent = minefleet.load(run.directory)
    action = agent.act(obs_of(1))
    kept = action[1].copy()
    assert not np.array_equal(agent.act(obs_of(2))[1], kept)
    assert np.array_equal(action[1], kept)


def test_a_run_its_checkpoint_and_an_exported_version_act_alike(run: Run, tmp_path: Path) -> None:
    trained, read, weights = read_trained(run.directory)
    described = architecture(build(run.config.policy, run.schema))
    now = datetime(2026, 1, 2, tzinfo=UTC)
    info = VersionInfo(
        version=7,
        epoch=1,
        run_id="r",
        iteration=0,
        architecture="",
        tensors=0,
        size_bytes=0,
        publish_time=now,
        pinned=False,
    )
    export(tmp_path / "out", run, info, entries_of(described), lambda entry: weights[entry.name])
    agents = [minefleet.load(path) for path in (run.directory, str(read.directory), tmp_path / "out")]
    assert [agent.version for agent in agents] == 3 * [trained.version]
    for seed in range(5):
        first, *others = (agent.act(obs_of(seed)) for agent in agents)
        assert all(same(first, other) for other in others)


def test_load_leaves_the_callers_random_numbers_alone(run: Run) -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    minefleet.load(run.directory)
    assert torch.equal(torch.rand(3), expected)


def test_an_environment_with_other_spaces_is_refused(run: Run) -> None:
    class Other(Logging):
        observation_space = Dict({**Logging.observation_space.spaces, "kind": Discrete(4)})

    assert minefleet.load(run.directory, Logging()).version == 7
    with pytest.raises(ConfigError, match="wrap it as the run does"):
        minefleet.load(run.directory, Other())


def test_an_observation_that_does_not_fit_is_named(run: Run) -> None:
    agent = minefleet.load(run.directory)
    with pytest.raises(EnvError, match="'place' must have shape"):
        agent.act({**obs_of(1), "place": np.zeros(4, np.float32)})
    with pytest.raises(EnvError, match="lacks 'action_mask'"):
        agent.act({"place": np.zeros(3, np.float32)})


def test_agent_make_env_returns_the_runs_environment_in_its_wrappers(tmp_path: Path) -> None:
    env = EnvConfig(id="CartPole-v1")
    config = FleetConfig(env=replace(env, wrappers=replace(env.wrappers, frame_stack=3)))
    found = find(config)
    run = Run(directory=tmp_path, config=config, schema=found.schema, architecture=found.architecture)
    run.write()
    checkpoint(run, to_numpy(build(config.policy, found.schema)))
    agent = minefleet.load(tmp_path)
    made = agent.make_env(render_mode="rgb_array")
    assert made.render_mode == "rgb_array" and made.observation_space.shape == (12,)
    assert agent.act(made.reset(seed=0)[0]) in (0, 1)
    with pytest.raises(ConfigError, match="wrap it as the run does"):
        minefleet.load(tmp_path, gymnasium.make("CartPole-v1"))


def test_an_environment_of_another_interpreter_is_refused_unless_there_is_one(run: Run, tmp_path: Path) -> None:
    elsewhere = replace(run, directory=tmp_path, config=replace(run.config, env=replace(run.config.env, python="/py")))
    elsewhere.write()
    checkpoint(elsewhere, read_trained(run.directory)[2])
    with pytest.raises(ConfigError, match="plays this environment, and not this interpreter"):
        minefleet.load(tmp_path)
    assert minefleet.load(tmp_path, Logging()).act(obs_of(1))


def test_load_reads_a_policy_while_the_learner_replaces_its_checkpoints(run: Run, tmp_path: Path) -> None:
    weights, over = read_trained(run.directory)[2], threading.Event()
    running = replace(run, directory=tmp_path)
    running.write()
    checkpoint(running, weights)

    def learn() -> None:
        for iteration in range(1, 25):
            checkpoint(running, weights, iteration)
            prune(running.checkpoints, save_interval=0, keep_interval=0)
        over.set()

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        while not over.is_set():
            assert read_trained(tmp_path)[0].version == 7
    finally:
        thread.join()


def test_a_damaged_checkpoint_is_refused(run: Run, tmp_path: Path) -> None:
    place = shutil.copytree(read_trained(run.directory)[1].directory, tmp_path / "00000000")
    (place / "policy.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="is damaged"):
        minefleet.load(place)
