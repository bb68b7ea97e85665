import sys
from pathlib import Path

import gymnasium
import pytest

from minefleet.config import EnvConfig
from minefleet.core.errors import ConfigError
from minefleet.envs import make

IDS = ("minefleet/Recall-v0", "minefleet/Corridor-v0", "minefleet/Crafter-v0")

GENERATORS = """
import gymnasium

def cart(limit):
    return gymnasium.make("CartPole-v1", max_episode_steps=limit)

def number():
    return 7
"""


@pytest.fixture
def generators(tmp_path: Path) -> Path:
    path = tmp_path / "generators.py"
    path.write_text(GENERATORS)
    return path


@pytest.mark.parametrize("name", IDS)
def test_our_environments_are_in_gymnasiums_registry(name: str) -> None:
    assert name in gymnasium.registry
    env = make(EnvConfig(id=name))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
    env.close()


def test_make_passes_kwargs_and_the_render_mode_to_the_environment() -> None:
    env = make(EnvConfig(id="minefleet/Crafter-v0", kwargs={"size": 32}), render_mode="rgb_array")
    env.reset(seed=0)
    assert env.observation_space.shape == (32, 32, 3)
    assert env.render_mode == "rgb_array"
    assert env.render().shape == (32, 32, 3)
    env.close()


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [("CartPol-v1", "CartPole-v1"), ("CartPole-v9", "CartPole-v1"), ("minefleet/Recal-v0", "minefleet/Recall-v0")],
)
def test_an_unknown_id_is_refused_with_the_nearest_ones(unknown: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"env.id '{unknown}'.*nearest are.*{nearest}"):
        make(EnvConfig(id=unknown))


def test_an_id_whose_package_is_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs a package.*no_such_package"):
        make(EnvConfig(id="no_such_package:Some-v0"))


def test_a_generator_makes_the_environment_with_its_kwargs(generators: Path) -> None:
    env = make(EnvConfig(generator=f"{generators}:cart", kwargs={"limit": 3}))
    assert env.spec is not None
    assert env.spec.max_episode_steps == 3


def test_a_generator_that_makes_no_environment_is_refused(generators: Path) -> None:
    with pytest.raises(ConfigError, match=r"number made a int, expected an environment: it has no reset, step"):
        make(EnvConfig(generator=f"{generators}:number"))


def test_a_config_without_an_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env.id or env.generator"):
        make(EnvConfig())


def test_an_environment_whose_package_is_missing_says_what_to_install_and_names_no_other() -> None:
    def incomplete() -> None:
        raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`')

    gymnasium.register("Incomplete-v0", entry_point=incomplete)  # type: ignore[arg-type]  # It makes none.
    try:
        with pytest.raises(ConfigError, match=r"needs a package .*: run `pip install .gymnasium\[box2d\]" + '"`$'):
            make(EnvConfig(id="Incomplete-v0"))
    finally:
        del gymnasium.registry["Incomplete-v0"]


def test_registry_of_nethack_without_its_package_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"needs a package .*'nle'; try `pip install nle`"):
        make(EnvConfig(id="NetHackScore-v0"))


def test_make_of_a_well_known_env_id_imports_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs a package .*'ale_py'; try `pip install ale_py`"):
        make(EnvConfig(id="ALE/Cart-v5"))
    cart = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    (tmp_path / "ale_py.py").write_text(f"import gymnasium\ngymnasium.register('ALE/Cart-v5', entry_point='{cart}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        make(EnvConfig(id="ALE/Cart-v5")).close()
    finally:
        sys.modules.pop("ale_py", None)
        gymnasium.registry.pop("ALE/Cart-v5", None)
