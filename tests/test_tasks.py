"""A fleet that draws tasks: what it asks for is played, by weight, and by success while there is something to learn."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Fleet

from minefleet.runs.episode_table import read_episodes

pytestmark = pytest.mark.fleet

WORLD = '''
import gymnasium
import numpy as np


class World(gymnasium.Env):
    """Three steps; the task says whether one wins always, never, or by taking action 1 each time."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.task, self.steps, self.is_right = options["task"], 0, True
        return self.look(), {}

    def look(self):
        return np.float32([self.task == "always", self.task == "never", self.task == "one", self.steps / 3])

    def step(self, action):
        self.steps += 1
        self.is_right &= action == 1
        over = self.steps == 3
        won = self.task == "always" or self.task == "one" and self.is_right
        return self.look(), float(over and won), over, False, {"metrics": {"success": float(won)}} if over else {}


def env_generator():
    return World()


online_dict = {"stop": {"env_steps": 30_000}}
'''


@pytest.fixture
def world(tmp_path: Path) -> str:
    path = tmp_path / "world.py"
    path.write_text(WORLD)
    return str(path)


def played(fleet: Fleet) -> list[tuple[str, float]]:
    assert fleet.finish()["stopped_by"] == "env_steps"
    return [(row["task"], row["episode_return"]) for row in read_episodes(fleet.directory / "episodes.csv")]


def test_fleet_plays_tasks_in_shares_by_their_weights(train: Callable[..., Fleet], world: str) -> None:
    episodes = played(train(world, "env.tasks={always: 3, never: 1}"))
    counts = Counter(task for task, _ in episodes)
    assert set(counts) == {"always", "never"}
    assert counts["always"] / len(episodes) == pytest.approx(0.75, abs=0.08)


def test_fleet_plays_most_the_task_that_is_being_learned(train: Callable[..., Fleet], world: str) -> None:
    tasks = "env.tasks={always: 1, never: 1, one: 1}"
    episodes = played(train(world, tasks, "env.task_sampling=success"))
    returns = [episode_return for task, episode_return in episodes if task == "one"]
    assert sum(returns[-200:]) / 200 > 0.9
    learned = next(n for n in range(200, len(returns)) if sum(returns[n - 200 : n]) / 200 > 0.9)
    at = [index for index, (task, _) in enumerate(episodes) if task == "one"][learned]
    counts = Counter(task for task, _ in episodes[:at])
    assert counts["one"] > 1.2 * max(counts["always"], counts["never"])
