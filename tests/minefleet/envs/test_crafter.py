import threading
from collections.abc import Iterator
from typing import Any

import crafter
import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.crafter_score import METRICS
from minefleet.envs.crafter import Crafter

NOOP = 0


@pytest.fixture
def env() -> Iterator[Crafter]:
    env = Crafter()
    yield env
    env.close()


def world(env: Any) -> NDArray[Any]:
    """The map of the world that is being played."""
    semantic: NDArray[Any] = env.step(NOOP)[-1]["semantic"]
    return semantic


def episode(env: Crafter, actions: NDArray[Any], seed: int | None = None) -> list[Any]:
    """Everything that a sequence of actions shows, up to the end of the episode."""
    obs, _ = env.reset(seed=seed)
    shown: list[Any] = [obs.tobytes()]
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(int(action))
        shown.append((obs.tobytes(), info["semantic"].tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return shown


def test_crafter_reset_gives_the_worlds_of_the_original_crafter_in_its_order(env: Crafter) -> None:
    plain = crafter.Env(seed=7)
    for number in range(3):
        obs, _ = env.reset(seed=7 if number == 0 else None)
        np.testing.assert_array_equal(obs, plain.reset())
        np.testing.assert_array_equal(world(env), world(plain))


def test_crafter_reset_with_a_seed_gives_its_world_whatever_was_made_ahead(env: Crafter) -> None:
    env.reset(seed=1)
    env.reset()
    env.reset(seed=7)
    plain = crafter.Env(seed=7)
    plain.reset()
    np.testing.assert_array_equal(world(env), world(plain))


def test_crafter_reset_never_gives_the_same_world_twice(env: Crafter) -> None:
    worlds = []
    for seed in (3, None, None, 4, None):
        env.reset(seed=seed)
        worlds.append(world(env).tobytes())
    assert len(set(worlds)) == len(worlds)


def test_crafter_reset_without_a_seed_gives_each_environment_another_world(env: Crafter) -> None:
    other = Crafter()
    env.reset()
    other.reset()
    assert world(env).tobytes() != world(other).tobytes()
    other.close()


def test_equal_actions_give_equal_episodes_wherever_objects_lie_in_memory() -> None:
    actions = np.random.default_rng(1).integers(17, size=200)
    alive, shown = [], []
    for ballast in (0, 777, 1_554):
        alive.append((Crafter(), [object() for _ in range(ballast)]))
        shown.append([episode(alive[-1][0], actions, seed=seed) for seed in (1, 2)])
    assert shown[0] == shown[1] == shown[2]
    for env, _ in alive:
        env.close()


def test_death_terminates_and_reports_the_achievements(env: Crafter) -> None:
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    terminated, unlocked = False, 0
    while not terminated:
        _, reward, terminated, truncated, info = env.step(int(rng.integers(17)))
        unlocked += reward > 0.5
        assert not truncated
    assert set(info["metrics"]) == set(METRICS)
    assert set(info["metrics"].values()) <= {0.0, 1.0}
    assert sum(info["metrics"].values()) >= unlocked > 0


def test_crafter_time_limit_truncates_and_does_not_terminate() -> None:
    env = Crafter(length=3)
    env.reset(seed=0)
    ends = [env.step(NOOP)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.close()


def test_crafter_close_ends_its_thread() -> None:
    env = Crafter()
    env.reset(seed=0)
    assert any(thread.name.startswith("crafter-world") for thread in threading.enumerate())
    env.close()
    assert not any(thread.name.startswith("crafter-world") for thread in threading.enumerate())
