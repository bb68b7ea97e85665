from pathlib import Path

import pytest
from tests.minefleet.launch.finding import find

from minefleet.config.load import load
from minefleet.core.errors import ConfigError, EnvFailedError
from minefleet.core.schema import Leaf, Schema
from minefleet.launch.preflight import describe_environment, preflight

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


def test_the_spaces_and_the_architecture_are_found_out() -> None:
    found = preflight(load("cartpole"))
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
def test_what_does_not_fit_together_is_said_in_one_line(
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
def test_an_environment_that_fails_is_told_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], beginning: str, end: str
) -> None:
    (tmp_path / "worlds.py").write_text(WORLDS)
    monkeypatch.chdir(tmp_path)
    config = load("cartpole", overrides)
    for look in (preflight, describe_environment):
        with pytest.raises(EnvFailedError) as caught:
            look(config)
        assert beginning in str(caught.value) and str(caught.value).endswith(end)


def test_preflight_names_a_missing_device_before_the_environment_fails() -> None:
    with pytest.raises(ConfigError, match=r"train_config\.device=gpu is no device"):
        preflight(load("cartpole", ["train_config.device=gpu", "env.id=CartPole-v99"]))


def test_the_environment_alone_is_looked_at_whatever_the_policy() -> None:
    config = load("cartpole", ["policy.generator=nowhere:nothing"])
    assert Schema.from_dict(describe_environment(config)["schema"]) == preflight(load("cartpole")).schema
