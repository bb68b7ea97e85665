from pathlib import Path

import pytest
from tests.minefleet.launch.finding import find

from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError, EnvFailedError
from minefleet.core.schema import Leaf, Schema
from minefleet.launch.env_policy_check import check_env_and_policy, describe_environment

WORLDS = """
import os
import signal

import gymnasium
from gymnasium import spaces


class Network(gymnasium.Env):
    observation_space = spaces.Graph(spaces.Discrete(2), None)
    action_space = spaces.Discrete(2)


class Broken(gymnasium.Env):
    observation_space = spaces.Box(0.0, 1.0, (3,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no world today")


def network():
    return Network()


def broken():
    return Broken()


def killed():
    os.kill(os.getpid(), signal.SIGKILL)
"""

POLICIES = """
from minefleet.config import PolicyConfig
from minefleet.policies import ActorCritic
from minefleet.policies.layers.encoders import encoder
from minefleet.core.schema import Leaf, Schema


def for_other_spaces():
    obs = Leaf(kind="box", shape=(99,), dtype="float32")
    action = Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,))
    schema = Schema(obs=obs, action=action)
    return ActorCritic(schema, encoder(obs, PolicyConfig()), features=256)


def of_bfloat16(schema):
    return ActorCritic(schema, encoder(schema.obs, PolicyConfig()), features=256).bfloat16()
"""


def test_env_policy_check_finds_the_spaces_and_the_architecture() -> None:
    found = check_env_and_policy(load("cartpole"))
    assert isinstance(found.schema.obs, Leaf) and found.schema.obs.shape == (4,)
    assert find(load("cartpole")) == found
    assert find(load("cartpole", ["policy.hidden_size=32"])).architecture != found.architecture


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.id=CartPole-v99"], r"env\.id 'CartPole-v99': .* nearest are CartPole-v1"),
        (["env.id=", "env.generator=worlds.py:network"], r"obs.*Graph.*Box, Discrete, MultiDiscrete"),
        (
            ["env.id=", "env.generator=worlds.py:nothing"],
            "worlds.py has no 'nothing'; it has Broken, Network, broken, killed, network$",
        ),
        (["env.id=", "env.generator=worlds.py:killed"], r"process ended with exit code -9: it said nothing$"),
        (["policy.generator=policies.py:for_other_spaces"], "the policy does not fit the environment's spaces: "),
        (["policy.generator=policies.py:of_bfloat16"], r"is bfloat16, which cannot travel; keep it in float32"),
    ],
)
def test_env_policy_check_of_a_policy_that_does_not_fit_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "policies.py").write_text(POLICIES)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        find(load("cartpole", overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "beginning", "end"),
    [
        (["env.kwargs.wind=3"], "the environment 'CartPole-v1' fails:\nTraceback", "with kwargs ({'wind': 3})"),
        (["env.id=", "env.generator=worlds.py:broken"], "worlds.py:broken' fails:\nTraceback", "no world today"),
    ],
)
def test_env_policy_check_of_a_failing_environment_quotes_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], beginning: str, end: str
) -> None:
    (tmp_path / "worlds.py").write_text(WORLDS)
    monkeypatch.chdir(tmp_path)
    config = load("cartpole", overrides)
    for look in (check_env_and_policy, describe_environment):
        with pytest.raises(EnvFailedError) as caught:
            look(config)
        assert beginning in str(caught.value) and str(caught.value).endswith(end)


STEPS = """
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

OBS = np.zeros(1, np.float32)
RESULTS = {
    "four": (OBS, 1.0, False, {}),
    "array": (OBS, np.ones(1), False, False, {}),
    "text": (OBS, "1", False, False, {}),
    "none": (OBS, None, False, False, {}),
    "nan": (OBS, float("nan"), False, False, {}),
    "other": (np.zeros(2, np.float32), 1.0, False, False, {}),
    "list": [OBS, 1.0, False, False, {}],
}


class World(gymnasium.Env):
    observation_space, action_space = Box(0.0, 1.0, (1,)), Discrete(2)

    def __init__(self, result=None, close_s=0.0):
        self.result, self.close_s = result, close_s

    def reset(self, *, seed=None, options=None):
        return OBS, {}

    def step(self, action):
        return RESULTS.get(self.result, (OBS, 1.0, False, False, {}))

    def close(self):
        time.sleep(self.close_s)


def several():
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")


def agents():
    from pettingzoo.utils.env import AECEnv

    return AECEnv()
"""


def steps(folder: Path, generator: str, **kwargs: object) -> FleetConfig:
    (folder / "steps.py").write_text(STEPS)
    given = [f"env.kwargs.{key}={value}" for key, value in kwargs.items()]
    return load("cartpole", ["env.id=", f"env.generator={folder}/steps.py:{generator}", *given])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("four", r"step must return \(obs, reward, terminated, truncated, info\), got 4 values"),
        ("list", r"step must return \(obs, .*\), got a list"),
        ("array", r"the reward must be one number, got array\(\[1\.\]\)"),
        ("text", "the reward must be one number, got '1'"),
        ("none", "the reward must be one number, got None"),
        ("nan", "the reward must be a finite float32, got nan"),
        ("other", r"must have shape \(1,\), got \(2,\)"),
    ],
)
def test_env_policy_check_of_an_environment_whose_step_is_wrong_says_how(
    tmp_path: Path, result: str, message: str
) -> None:
    with pytest.raises(EnvFailedError, match=message):
        describe_environment(steps(tmp_path, "World", result=result))


@pytest.mark.parametrize(
    ("generator", "message"),
    [("several", "made SyncVectorEnv: make one environment"), ("agents", "made AECEnv: it has several agents")],
)
def test_env_policy_check_of_several_environments_or_agents_says_what_to_make(
    tmp_path: Path, generator: str, message: str
) -> None:
    package = tmp_path / "pettingzoo" / "utils"
    package.mkdir(parents=True)
    (package / "env.py").write_text("class AECEnv:\n    pass\n")
    with pytest.raises(ConfigError, match=message):
        describe_environment(steps(tmp_path, generator))


def test_env_policy_check_of_an_environment_whose_close_hangs_names_close(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"close\(\) has not returned within 10 s"):
        describe_environment(steps(tmp_path, "World", close_s=600))


def test_env_policy_check_names_a_missing_device_before_the_environment_fails() -> None:
    with pytest.raises(ConfigError, match=r"train_config\.device=gpu is no device"):
        check_env_and_policy(load("cartpole", ["train_config.device=gpu", "env.id=CartPole-v99"]))


def test_describe_environment_does_not_make_the_policy() -> None:
    config = load("cartpole", ["policy.generator=nowhere:nothing"])
    assert Schema.from_dict(describe_environment(config)["schema"]) == check_env_and_policy(load("cartpole")).schema
