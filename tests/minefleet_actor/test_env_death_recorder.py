"""Deaths of environments, as an actor keeps them."""

import dataclasses
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.minefleet_actor.planted_deaths import GO_ON, PlayedPool, faulty_run, make_run, plant
from tests.role_process import small_disk, wait_for

from minefleet.config import EnvConfig
from minefleet.monitoring.env_death_groups import Death, read_deaths
from minefleet.runs.run_yaml import Run
from minefleet_actor.evaluation.env_death_reproduction import repeat
from minefleet_actor.pool import EnvPool, Failure, InlinePool

RAISE, SEGFAULT = 3, 15
FATE = '''
import random

import gymnasium
import numpy as np


class World(gymnasium.Env):
    """Dies when it has dug seven times; its seed says how it looks, and how long episodes are, unless chance does."""

    observation_space = gymnasium.spaces.Box(0, 255, (16, 20, 3), np.uint8)
    action_space = gymnasium.spaces.Dict(
        {"dig": gymnasium.spaces.Discrete(2), "turn": gymnasium.spaces.Box(-1, 1, (2,))}
    )

    def __init__(self, *, by_chance=False, lives=False):
        self.by_chance, self.lives, self.dug = by_chance, lives, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.end = 0, int(self.np_random.integers(3, 9))
        source = random if self.by_chance else self.np_random
        self.colour = np.array([source.random() * 256 for _ in range(3)]).astype(np.uint8)
        return self.seen(), {"task": options["task"] if options else "none"}

    def seen(self):
        return np.zeros((16, 20, 3), np.uint8) + self.colour + np.uint8(self.steps)

    def step(self, action):
        self.steps, self.dug = self.steps + 1, self.dug + int(action["dig"])
        if self.dug == 7 and action["dig"] and not self.lives:
            raise RuntimeError("dug too deep")
        return self.seen(), 1.0, self.steps == self.end, False, {}
'''


def died(place: Path, **kwargs: Any) -> tuple[Run, Death]:
    """A death of the world above after some episodes, and its run."""
    (place / "fate.py").write_text(FATE)
    run, random = (
        make_run(place, EnvConfig(generator=f"{place}/fate.py:World", kwargs=kwargs), num_envs=1),
        np.random.default_rng(0),
    )
    with PlayedPool(run) as player:
        deaths = list[int]()
        action = lambda _: {"dig": random.integers(2), "turn": random.random(2, np.float32)}  # noqa: E731
        player.play(action, lambda: not deaths, deaths.append)
    (death,) = read_deaths(place)
    return run, death


def repeated(run: Run, death: Death, **kwargs: Any) -> tuple[bool, str]:
    env = dataclasses.replace(run.config.env, kwargs=run.config.env.kwargs | kwargs)
    worker = run.config.rollout_config.worker_config
    return repeat(EnvPool(env, run.schema, worker, seed=9, actor_index=0), Path(death["place"]))


@pytest.mark.fleet
def test_planted_deaths_of_six_kinds_are_in_their_groups(tmp_path: Path) -> None:
    episodes, pairs = plant(tmp_path, episodes=1000)
    right = sum(group.startswith(way) for way, group in pairs)
    assert episodes >= 1000 and len(pairs) == 40 and right >= 38, pairs


def test_a_death_keeps_its_actions_pictures_memory_and_seed(tmp_path: Path) -> None:
    _, death = died(tmp_path)
    assert death["group"].startswith("RuntimeError@fate.py:") and "dug too deep" in death["text"]
    assert (death["slot"], death["task"], death["cannot_repeat"]) == (0, "none", "") and death["seed"] >= 0
    assert death["rss_bytes"][-1] > 1_000_000 and death["episode"] > 1 and death["steps"] > 0
    place = Path(death["place"])
    with np.load(place / "actions.npz") as arrays:
        actions, begins = arrays["actions"], arrays["begin"]
    assert len(begins) == death["episode"] and len(actions) - begins[-1] == death["steps"]
    assert actions["/dig"].sum() == 7 and actions["/dig"].dtype == np.uint8 and actions["/turn"].shape[1:] == (2,)
    frames = sorted(place.glob("*.png"))
    assert [int(path.stem[5:]) for path in frames] == list(range(max(0, len(actions) - 8), len(actions)))
    assert np.asarray(Image.open(frames[-1])).shape == (16, 20, 3)


def test_a_death_of_a_deterministic_environment_is_repeated_and_others_are_said_to_differ(tmp_path: Path) -> None:
    run, death = died(tmp_path)
    is_same, verdict = repeated(run, death)
    assert is_same and "it died in the same way, of RuntimeError@fate.py" in verdict
    for kwargs, words in (
        ({"by_chance": True}, "it is not deterministic: episode 1 of"),
        ({"lives": True}, "all is as recorded, and it lives"),
    ):
        is_same, verdict = repeated(run, death, **kwargs)
        assert not is_same and words in verdict


def test_picture_of_a_slot_that_renders_is_the_last_one_if_it_was_filmed(tmp_path: Path) -> None:
    plain = make_run(tmp_path, EnvConfig(id="CartPole-v1"), num_envs=3)
    with PlayedPool(dataclasses.replace(plain, frame_shape=(400, 600, 3)), InlinePool) as player:
        for slot in (0, 1):
            player.pool.film(slot, True)
        player.pool.frames[0], player.pool.frames[2] = (
            7,
            9,
        )  # Slot 1 renders from its next command on, 2 shows an old one.
        for slot in range(3):
            player.recorder.keep(slot, Failure("error", f"slot {slot}"), "", in_reset=True)
        assert list(player.recorder.pictures) == [0] and np.all(player.recorder.pictures[0] == 7)
        player.pool.film(0, False)
        player.recorder.keep(0, Failure("error", "later"), "", in_reset=True)
        assert player.recorder.pictures == {}


def test_a_death_in_a_shared_process_is_of_the_slot_that_was_at_work(tmp_path: Path) -> None:
    with PlayedPool(faulty_run(tmp_path, num_envs=3, envs_per_process=3)) as player:
        deaths = list[int]()
        player.play(lambda slot: SEGFAULT if slot == 1 else GO_ON, lambda: not deaths, deaths.append)
    assert deaths[0] == 1 and sorted(deaths) == [0, 1, 2]
    (death,) = read_deaths(tmp_path)
    assert (death["slot"], death["group"], death["count"]) == (1, "SIGSEGV", 1)


def test_deaths_beyond_the_bounds_are_counted_and_the_oldest_of_the_largest_group_goes(tmp_path: Path) -> None:
    run = faulty_run(tmp_path, num_envs=1, deaths_kept=5)
    with PlayedPool(run, InlinePool) as player:
        player.recorder.keep(0, Failure("hang", "RESET took longer than 1 s"), "", in_reset=True)
        for number in range(3000):
            player.recorder.keep(0, Failure("error", f"number {number}"), "", in_reset=True)
    with PlayedPool(run, InlinePool) as player:  # Counts go on.
        player.recorder.keep(0, Failure("error", "number 3000"), "", in_reset=True)
    deaths = read_deaths(tmp_path)
    assert Counter(death["group"] for death in deaths) == {"hang:RESET": 1, "error:number-N": 4}
    assert deaths[-1]["first_s"] <= deaths[1]["time_s"] and len(list((tmp_path / "deaths").iterdir())) == 5
    assert deaths[-1]["count"] == 3001


def test_recorder_on_a_full_disk_says_so_once_and_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "run", 2**20) as disk:
        run = faulty_run(disk, num_envs=1)
        (disk / "deaths").mkdir()
        with (disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(4096))
        with PlayedPool(run, InlinePool) as player:
            for number in range(3):
                player.recorder.keep(0, Failure("error", f"number {number}"), "", in_reset=True)
        assert len([text for text in caplog.messages if "are not kept: cannot write" in text]) == 1
        assert list((disk / "deaths").iterdir()) == []
        (disk / "ballast").unlink()
        with PlayedPool(run, InlinePool) as player:
            player.recorder.keep(0, Failure("error", "at last"), "", in_reset=True)
        assert [death["text"] for death in read_deaths(disk)] == ["at last"]


WRITER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from planted_deaths import PlayedPool, faulty_run
from minefleet_actor.pool import Failure, InlinePool

with PlayedPool(faulty_run(Path(sys.argv[1]), num_envs=1, deaths_kept=20), InlinePool) as player:
    while True:
        player.recorder.keep(0, Failure("error", "again"), "", in_reset=True)
"""


def write_until_killed(place: Path) -> None:
    """Lets a process keep deaths, and kills it when the first is there and others are under way."""
    before = {death["name"] for death in read_deaths(place)}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(place)])
    wait_for(lambda: bool(writer.poll() or {death["name"] for death in read_deaths(place)} - before))
    assert writer.poll() is None
    writer.send_signal(signal.SIGKILL)
    writer.wait()


def test_an_actor_that_is_killed_while_it_writes_leaves_no_torn_death(tmp_path: Path) -> None:
    for _ in range(4):
        write_until_killed(tmp_path)
        for death in read_deaths(tmp_path):
            with np.load(Path(death["place"]) / "actions.npz") as arrays:
                assert len(arrays["begin"]) == death["episode"]
    with PlayedPool(faulty_run(tmp_path, num_envs=1), InlinePool):
        assert len(list((tmp_path / "deaths").iterdir())) == len(read_deaths(tmp_path)) <= 20
