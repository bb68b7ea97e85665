"""The slots of an actor in a whole fleet, as people who watch see them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from minefleet.core.errors import NotFoundError, UnavailableError
from minefleet.monitoring.slot_queries import SlotStatus, get_frame, list_slots
from minefleet.rpc.credentials import NOTHING

pytestmark = pytest.mark.fleet

TIMEOUT_S = 120.0
T = TypeVar("T")
WORLD = '''
import time

import gymnasium
import numpy as np


class World(gymnasium.Env):
    """Pays 1 a step for ten steps; each third episode fails at its sixth."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 48, 3), np.uint8)
    action_space = gymnasium.spaces.Dict({"dig": gymnasium.spaces.Discrete(2), "turn": gymnasium.spaces.Discrete(4)})
    episode = 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return np.full((40, 48, 3), 40, np.uint8), {"task": "dig"}

    def step(self, action):
        time.sleep(0.02)
        self.steps += 1
        if self.episode % 3 == 0 and self.steps == 6:
            raise RuntimeError("the world fell apart \\udcff")
        return np.full((40, 48, 3), 40, np.uint8), 1.0, self.steps == 10, False, {}


def env_generator():
    return World()


online_dict = {"rollout_config": {"worker_config": {"num_envs": 4, "envs_per_process": 2}}}
'''


@pytest.fixture
def card(tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "world.py").write_text(WORLD)
    command = [sys.executable, "-m", "minefleet", "train", "world.py", "--run-dir", "run"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    path = tmp_path / "run/roles/actor-0.json"

    def announced() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        assert process.poll() is None, (tmp_path / "log").read_text()
        return found if found.get("address") else None

    yield until(announced)
    process.terminate()
    process.wait(TIMEOUT_S)


def until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("never seen")


def test_slots_of_a_fleet_show_what_they_do_and_why_they_failed(card: dict[str, Any]) -> None:
    def all_failed() -> list[SlotStatus] | None:
        try:
            slots = list_slots(card, NOTHING)
        except UnavailableError:
            return None
        return slots if all(slot.failures for slot in slots) else None

    slots = until(all_failed)
    assert [slot.slot for slot in slots] == [0, 1, 2, 3]
    for slot in slots:
        assert slot.last_failure is not None and "the world fell apart ?" in slot.last_failure.text
        assert (slot.last_failure.kind, slot.task) == ("exception", "dig")

    def stepping() -> SlotStatus | None:
        found = [slot for slot in list_slots(card, NOTHING) if slot.state == "stepping" and 0 < slot.episode_steps < 5]
        return found[0] if found else None

    slot = until(stepping)
    assert slot.episode_return == pytest.approx(slot.episode_steps, abs=1)
    assert slot.step_s is not None and slot.step_s >= 0.02
    assert slot.version >= 1 and slot.value is not None
    assert slot.action.startswith("dig ") and "  turn " in slot.action
    picture = get_frame(card, NOTHING, 3)
    assert picture.shape == (40, 48, 3) and np.all(picture == 40)
    with pytest.raises(NotFoundError, match="there is no slot 4: this actor has 4"):
        get_frame(card, NOTHING, 4)
