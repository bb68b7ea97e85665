"""Environments of other ages than Gymnasium's, as the worker sees them."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minefleet_env.make_env import make
from minefleet_env.space_conversion import schema_of
from minefleet_env.wrappers.wrap import DEFAULTS


class Ancient:
    """As gym 0.21 had them: no seed in `reset`, no info from it, one `done`, a mode for `render`."""

    observation_space: Any = spaces.Discrete(100)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int = 3, goal: int = 5) -> None:
        self._limit, self._goal = limit, goal
        self._count = 0

    def seed(self, seed: int) -> None:
        self._count = seed

    def reset(self) -> Any:
        self._steps = 0
        return self._count

    def step(self, action: int) -> Any:
        self._steps += 1
        self._count += action
        over = self._count == self._goal
        cut = self._steps == self._limit
        info = {"TimeLimit.truncated": not over} if cut else {}
        return self._count, 1.0, over or cut, info

    def render(self, mode: str = "human") -> Any:
        return np.full((2, 3, 3), self._count, np.uint8) if mode == "rgb_array" else None

    def close(self) -> None:
        pass


class Middle(Ancient):
    """As gym 0.26 has them."""

    render_mode = "rgb_array"

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self._count = seed + 1
        return super().reset(), {"task": "middle"}

    def step(self, action: int) -> Any:
        obs, reward, done, info = super().step(action)
        return obs, reward, False, done, info

    def render(self) -> Any:  # type: ignore[override]
        return super().render("rgb_array")


class DiscreteSpace(NamedTuple):
    """A space of a library's own, as crafter has them where gym is missing."""

    n: int


class Bare:
    """Of no library: nothing to seed, to draw or to close."""

    observation_space = DiscreteSpace(9)
    action_space = DiscreteSpace(2)

    def reset(self, options: Any = None) -> Any:
        return len(options or {})

    def step(self, action: int) -> Any:
        return action, 0.0, False, {}


class Pairs(Ancient):
    """Shows a pair whose second part is a dict, like a new `reset` and unlike one."""

    observation_space = spaces.Tuple((spaces.Discrete(100), spaces.Dict({"lamp": spaces.Discrete(2)})))

    def reset(self) -> Any:
        return super().reset(), {"lamp": 1}


def made(cls: type, **kwargs: Any) -> Any:
    return make(
        {
            "id": "",
            "generator": f"{cls.__module__}:{cls.__name__}",
            "kwargs": kwargs,
            "wrappers": DEFAULTS,
            "batched": False,
        }
    )


def test_old_env_is_seeded_before_its_reset() -> None:
    env = made(Ancient)
    assert env.reset(seed=4) == (4, {})
    assert env.reset() == (4, {})


@pytest.mark.parametrize(
    ("start", "actions", "ends"),
    [
        (0, [1, 1, 1], [(False, False), (False, False), (False, True)]),
        (4, [1], [(True, False)]),
        (2, [1, 1, 1], [(False, False), (False, False), (True, False)]),
    ],
)
def test_old_env_tells_a_time_limit_from_an_end(start: int, actions: list[int], ends: list[tuple[bool, bool]]) -> None:
    env = made(Ancient)
    env.reset(seed=start)
    assert [env.step(action)[2:4] for action in actions] == ends


def test_old_env_passes_five_results_and_the_info_of_a_reset_as_they_are() -> None:
    env = made(Middle)
    assert env.reset(seed=0) == (1, {"task": "middle"})
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_old_env_observation_that_looks_like_obs_and_info_stays_an_observation() -> None:
    assert made(Pairs).reset(seed=3) == ((3, {"lamp": 1}), {})


@pytest.mark.parametrize("cls", [Ancient, Middle])
def test_an_environment_of_any_age_renders_arrays(cls: type) -> None:
    env = made(cls)
    env.reset(seed=6)
    assert env.render().shape == (2, 3, 3)


def test_an_environment_with_nothing_to_seed_or_close_plays() -> None:
    env = made(Bare)
    assert schema_of(env)["obs"][""]["categories"] == [9]
    assert not hasattr(env.unwrapped, "is_elsewhere")
    assert env.reset(seed=4) == (0, {})
    assert env.step(1)[0] == 1
    env.close()


def test_the_options_of_a_reset_reach_an_old_environment() -> None:
    assert made(Bare).reset(options={"task": "dig"}) == (1, {})


def test_an_environment_of_gymnasium_is_left_as_it_is() -> None:
    env = make({"id": "CartPole-v1", "generator": "", "kwargs": {}, "wrappers": DEFAULTS, "batched": False})
    assert isinstance(env, gymnasium.Env)
