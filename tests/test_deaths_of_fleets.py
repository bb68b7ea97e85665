"""Deaths of environments in whole runs, as `minefleet deaths` groups and `minefleet env --replay` repeats them."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import COMMAND, Fleet

from minefleet.monitoring.env_death_groups import read_deaths

pytestmark = pytest.mark.fleet

WORLD = '''
import os

import gymnasium
import numpy as np


class World(gymnasium.Env):
    """Ten steps; one episode in twelve ends with an error at the fifth, or, without --serial, with its process."""

    observation_space = gymnasium.spaces.Box(0, 255, (16, 20, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.fate = 0, self.np_random.integers(24)
        return self.seen(), {"task": "dig"}

    def seen(self):
        return np.full((16, 20, 3), self.steps, np.uint8)

    def step(self, action):
        self.steps += 1
        if self.steps == 5 and self.fate == 0:
            raise RuntimeError("the world fell apart")
        if self.steps == 5 and self.fate == 1 and "SERIAL" not in os.environ:
            os._exit(7)
        return self.seen(), 1.0, self.steps == 10, False, {}


def env_generator():
    return World()


online_dict = {"rollout_config": {"worker_config": {"num_envs": 4}}}
'''


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)


def groups(directory: Path) -> set[str]:
    return {death["group"] for death in read_deaths(directory)}


def error(place: Path) -> str:
    (place / "world.py").write_text(WORLD)
    line = WORLD[: WORLD.index("the world fell")].count("\n") + 1
    return f"RuntimeError@world.py:{line}"


def test_deaths_of_a_fleet_whose_actor_is_killed_are_grouped_counted_and_repeated(
    train: Callable[..., Fleet], tmp_path: Path
) -> None:
    expected = {error(tmp_path), "exit:7"}
    fleet = train("world.py", "stop.env_steps=1e9", "rollout_config.num_rollout_workers=1")
    fleet.wait_for(lambda: groups(fleet.directory) == expected)
    before = fleet.pid("actor-0")
    os.kill(before, signal.SIGKILL)
    seen = {death["name"] for death in read_deaths(fleet.directory)}
    fleet.wait_for(lambda: any(death["name"] not in seen for death in read_deaths(fleet.directory)))
    fleet.process.send_signal(signal.SIGTERM)
    fleet.process.communicate()

    deaths: list[dict[str, Any]] = json.loads(command("deaths", str(fleet.directory), "--json").stdout)
    for group in expected:
        of_group = [death for death in deaths if death["group"] == group]
        assert [death["count"] for death in of_group] == list(range(1, len(of_group) + 1))
        assert all(death["steps"] == 5 and death["task"] == "dig" for death in of_group)
        assert f"{group}: {len(of_group)} times" in command("deaths", str(fleet.directory)).stdout
    shown = command("deaths", str(fleet.directory), "Runtime").stdout
    assert "the world fell apart" in shown and "5 to 5 steps after the reset" in shown and "exit:7" not in shown
    again = next(line for line in shown.splitlines() if line.startswith("again"))
    repeated = command(*again.partition(" minefleet ")[2].split())
    assert repeated.returncode == 0 and "it died in the same way, of RuntimeError@world.py" in repeated.stdout


def test_deaths_of_a_run_in_one_process_are_kept_and_repeated(
    train: Callable[..., Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERIAL", "yes")
    expected = error(tmp_path)
    fleet = train("world.py", "--serial", "stop.env_steps=3000")
    fleet.finish()
    deaths = read_deaths(fleet.directory)
    assert groups(fleet.directory) == {expected} and all(death["rss_bytes"] for death in deaths)
    repeated = command("env", "--replay", deaths[-1]["place"])
    assert repeated.returncode == 0 and f"it died in the same way, of {expected}" in repeated.stdout
