"""The page's server over a whole fleet: its numbers are those of other tools, and roles may stop, die and return."""

import csv
import io
import json
import math
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image
from tests.conftest import COMMAND, Fleet
from tests.minefleet.watch.page_server import Browser, serving_page

from minefleet.watch.thinned_metrics_reader import numbers

pytestmark = pytest.mark.fleet

ACTORS, SLOTS = 2, 4
WORLD = f'''
import time

import gymnasium
import numpy as np


class World(gymnasium.Env):
    """Shows its step, and fails at the seventh of each third episode."""

    observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    episode = 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.look(), {{"task": "dig"}}

    def look(self):
        return np.full((16, 16, 3), 10 + self.steps, np.uint8)

    def step(self, action):
        time.sleep(0.002)
        self.steps += 1
        if self.episode % 3 == 0 and self.steps == 7:
            raise RuntimeError("the world fell apart")
        return self.look(), 1.0, self.steps == 10, False, {{}}


def env_generator():
    return World()


online_dict = {{
    "rollout_config": {{
        "num_rollout_workers": {ACTORS},
        "fragment_length": 8,
        "worker_config": {{"num_envs": {SLOTS}, "envs_per_process": 2}},
        "replay_buffer_config": {{"fragments_per_chunk": 1}},
    }},
}}
'''


@pytest.fixture
def fleet(tmp_path: Path, train: Callable[..., Fleet]) -> Fleet:
    (tmp_path / "world.py").write_text(WORLD)
    return train("world.py", "stop.env_steps=0")


@pytest.fixture
def page(fleet: Fleet) -> Iterator[Browser]:
    fleet.wait_for((fleet.directory / "run.yaml").exists)
    with serving_page([fleet.directory]) as browser:
        yield browser


def slots_of(page: Browser) -> list[dict[str, Any]]:
    return [
        {"actor": one["name"], **slot}
        for one in page.get("/api/runs/run/slots").data["actors"]
        for slot in one["slots"]
    ]


def reported(command: str, directory: Path) -> Any:
    done = subprocess.run(
        [*COMMAND, *command.split(), "--json", str(directory)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def finite(row: dict[str, Any]) -> dict[str, float | None]:
    return dict(numbers(row))


def is_still(page: Browser) -> bool:
    """Whether every slot waits for the learner, and nothing is on its way to replay."""
    slots = slots_of(page)
    roles = {role["name"]: role["stats"] for role in page.get("/api/runs/run/status").data["roles"]}
    queued = [roles[f"actor-{number}"].get("queued_fragments") for number in range(ACTORS)]
    return len(slots) == ACTORS * SLOTS and {slot["state"] for slot in slots} == {"blocked"} and queued == [0] * ACTORS


def test_every_number_of_a_fleet_that_stands_still_is_that_of_status_metrics_and_replay(
    fleet: Fleet, page: Browser
) -> None:
    fleet.wait_for(lambda: len(fleet.rows()) > 2 and fleet.rows()[-1]["episode_failures_by_kind"] != {})
    os.kill(fleet.pid("learner"), signal.SIGSTOP)
    try:
        fleet.wait_for(lambda: is_still(page))
        before = reported("status", fleet.directory)
        status, slots = page.get("/api/runs/run/status").data, slots_of(page)
        failures, (run,) = page.get("/api/runs/run/failures").data, page.get("/api/runs").data["runs"]
        row = fleet.rows()[-1]
        curves = page.get(f"/api/runs/run/curves?{urlencode([('key', key) for key in finite(row)])}").data
        (shard,) = reported("replay stats", fleet.directory)["shards"]
        after = reported("status", fleet.directory)
        assert_roles_agree(before, status, after)
        assert_rows_agree(row, run, curves, status["metrics"])
        assert_slots_agree(slots, status, shard)
        assert_failures_agree(fleet, failures, slots, row)
        assert_pictures_agree(page, slots)
    finally:
        os.kill(fleet.pid("learner"), signal.SIGCONT)


def assert_roles_agree(before: Any, status: Any, after: Any) -> None:
    """Numbers on which two calls of `minefleet status` agree do not move with time: the page shows the same."""
    roles = [{role["name"]: role for role in one["roles"]} for one in (before, status, after)]
    assert roles[0].keys() == roles[1].keys() and "learner" in roles[0]
    still = set()
    for name, role in roles[0].items():
        assert (role["pid"], role["address"], role["state"]) == tuple(
            roles[1][name][key] for key in ("pid", "address", "state")
        )
        for stat, value in role["stats"].items():
            if value == roles[2][name]["stats"][stat]:
                assert roles[1][name]["stats"][stat] == value, (name, stat)
                still.add((name, stat))
    assert {("actor-0", "env_steps"), ("actor-1", "env_failures"), ("replay", "trained_steps")} < still
    assert {("replay", "live_steps"), ("actor-0", "policy_version"), ("parameters", "newest_version")} < still


def assert_rows_agree(row: dict[str, Any], run: Any, curves: Any, metrics: Any) -> None:
    assert {key: run[key] for key in ("iteration", "env_steps", "wall_s")} == {
        key: row[key] for key in ("iteration", "env_steps", "wall_s")
    }
    assert run["episode_return_mean"] == row["episode_return_mean"] and run["is_live"]
    assert {key: column[-1] for key, column in curves["columns"].items()} == finite(row)
    assert len(curves["iteration"]) == curves["total"] == row["iteration"]
    assert finite(metrics) == finite(row)


def assert_slots_agree(slots: Any, status: Any, shard: Any) -> None:
    stats = {role["name"]: role["stats"] for role in status["roles"]}
    for actor in ("actor-0", "actor-1"):
        own = [slot for slot in slots if slot["actor"] == actor]
        assert sum(slot["failures"] for slot in own) == stats[actor]["env_failures"]
        reasons = Counter(slot["reason"] for slot in own)
        assert {reason: stats[actor][f"blocked_for_{reason}"] for reason in reasons} == reasons
        assert {slot["version"] for slot in own} <= set(range(int(stats[actor]["policy_version"]) + 1))
    still = [name for name in shard.keys() & stats["replay"].keys() if not name.endswith("_seconds")]
    assert "live_steps" in still
    assert {name: int(stats["replay"][name]) for name in still} == {name: shard[name] for name in still}
    dropped = sum(shard[f"{bucket}_steps"] for bucket in ("expired", "evicted", "corrupt"))
    assert sum(slot["dropped_steps"] for slot in slots) == dropped
    assert sum(slot["trained_steps"] for slot in slots) == shard["trained_steps"] > 0
    for slot in slots:
        assert math.isclose(
            slot["trained_share"], slot["trained_steps"] / (slot["trained_steps"] + slot["dropped_steps"])
        )


def assert_failures_agree(fleet: Fleet, failures: Any, slots: Any, row: dict[str, Any]) -> None:
    assert failures["by_kind"] == row["episode_failures_by_kind"]
    with (fleet.directory / "episodes.csv").open() as file:
        failed = [episode for episode in csv.DictReader(file) if episode["failure"]]
    shown = [(one["stream"], one["length"], one["failure"]) for one in failures["episodes"]]
    assert shown == [(one["stream"], int(one["length"]), one["failure"]) for one in failed[:-51:-1]] and shown
    assert {stream for stream, _, _ in shown} <= {slot["stream"] for slot in slots}
    assert {(one["actor"], one["slot"], one["failures"]) for one in failures["slots"]} == {
        (slot["actor"], slot["slot"], slot["failures"]) for slot in slots if slot["failures"]
    }


def assert_pictures_agree(page: Browser, slots: Any) -> None:
    """The world shows 10 more than its step, and failed after the sixth."""
    for slot in slots:
        place = f"/api/runs/run/slots/{slot['actor']}/{slot['slot']}/frame"
        assert pixel(page, place) == 10 + slot["episode_steps"]
        if slot["last_failure"]:
            assert slot["last_failure"]["has_frame"] and "the world fell apart" in slot["last_failure"]["text"]
            assert pixel(page, f"{place}?of=failure") == 16
        else:
            assert page.get(f"{place}?of=failure").status == 404
        assert page.get(f"{place}?of=tomorrow").status == 400


def pixel(page: Browser, path: str) -> int:
    picture = np.asarray(Image.open(io.BytesIO(page.get(path).body)))
    assert picture.shape == (16, 16, 3) and len(np.unique(picture)) == 1
    return int(picture[0, 0, 0])


def test_an_actor_that_stops_or_dies_is_named_while_the_others_answer_and_comes_back(
    fleet: Fleet, page: Browser
) -> None:
    def seen() -> dict[str, tuple[bool, int]]:
        actors = page.get("/api/runs/run/slots").data["actors"]
        return {actor["name"]: (actor["error"] is None, len(actor["slots"])) for actor in actors}

    working = {"actor-0": (True, SLOTS), "actor-1": (True, SLOTS)}
    fleet.wait_for(lambda: seen() == working)
    os.kill(fleet.pid("actor-0"), signal.SIGSTOP)
    fleet.wait_for(lambda: seen() == working | {"actor-0": (False, 0)})
    stopped = page.get("/api/runs/run/slots").data["actors"][0]
    assert stopped["error"] == "it does not answer within 2 s"
    assert page.get("/api/runs/run/slots/actor-0/0/frame").status == 503
    assert page.get("/api/runs/run/slots/actor-1/0/frame").status == 200
    assert page.get("/api/runs/run/failures").status == 200
    states = {role["name"]: role["state"] for role in page.get("/api/runs/run/status").data["roles"]}
    assert (states["actor-0"], states["replay"]) == ("unreachable", "running")
    os.kill(fleet.pid("actor-0"), signal.SIGCONT)
    fleet.wait_for(lambda: seen() == working)
    killed = fleet.pid("actor-0")
    os.kill(killed, signal.SIGKILL)
    fleet.wait_for(lambda: fleet.pid("actor-0") not in (0, killed) and seen() == working)
    assert page.get("/api/runs/run/slots/actor-0/0/frame").status == 200
