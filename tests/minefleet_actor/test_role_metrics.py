"""A real actor exports metrics while its environment fails, replay grants nothing more, and replay does not answer."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.role_process import TIMEOUT_S, wait_for

from minefleet.config import ServicesConfig
from minefleet.config.load import load
from minefleet.launch import ports
from minefleet.launch.env_policy_check import check_env_and_policy
from minefleet.monitoring.slot_queries import list_slots
from minefleet.monitoring.status import read_cards, read_status
from minefleet.policies import build
from minefleet.policies.weight_arrays import to_numpy
from minefleet.rpc.credentials import NOTHING
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run

WORLD = """
import gymnasium
from gymnasium import spaces


class World(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)
    episodes = steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes, self.steps = self.episodes + 1, 0
        return self.observation_space.sample(), {"task": "hunt"}

    def step(self, action):
        self.steps += 1
        if self.episodes == 3 and self.steps == 2:
            raise ValueError("the sky falls")
        return self.observation_space.sample(), 1.0, self.steps == 4, False, {}


def world():
    return World()
"""
SETTINGS = (
    "rollout_config.fragment_length=8",
    "rollout_config.to_send_queue_size=1",
    "rollout_config.worker_config.num_envs=2",
    "rollout_config.worker_config.batch_size=1",
    "rollout_config.replay_buffer_config.database_config.path=cache/store",
    "rollout_config.replay_buffer_config.pacing='off'",
)


@contextmanager
def role(run: Run, module: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", module, "--run-dir", str(run.directory)]
    with (run.directory / f"{module}.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Run, dict[str, "subprocess.Popen[bytes]"]]]:
    """Parameters with a first version, replay, and an actor whose environments fail in every third episode."""
    (tmp_path / "world.py").write_text(WORLD)
    (tmp_path / "mine.yaml").write_text("env: {generator: 'world.py:world'}\n")
    config = load(str(tmp_path / "mine.yaml"), SETTINGS)
    found = check_env_and_policy(config)
    placed = ports.claim(ServicesConfig())
    run = Run(
        directory=tmp_path,
        config=replace(config, services=placed),
        schema=found.schema,
        architecture=found.architecture,
    )
    run.write()
    with role(run, "minefleet_parameters") as parameters, role(run, "minefleet_replay") as replay:
        with closing(ParametersClient(placed.parameters.address, patience_s=TIMEOUT_S)) as learner:
            learner.open_epoch("run")
            learner.publish(to_numpy(build(config.policy, found.schema)), iteration=0)
        with role(run, "minefleet_actor") as actor:
            yield run, {"parameters": parameters, "replay": replay, "actor": actor}
        assert actor.returncode == 0, (tmp_path / "minefleet_actor.log").read_text()


def scrape(run: Run) -> str:
    """All that the actor's metrics say at one moment; nothing while it is not up."""
    card = run.directory / "roles" / "actor-0.json"
    if not card.exists():
        return ""
    address = json.loads(card.read_text())["metrics_address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
        return str(answer.read().decode())


def total(text: str, name: str, **labels: str) -> float:
    """The sum of the samples of a metric that have these labels."""
    found = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"minefleet_actor_{name}(?:{{(.*)}})? (\S+)", line)
        if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            found += float(match[2])
    return found


def sample(run: Run, name: str, **labels: str) -> float:
    """The same, as it is now; 0 while the actor is not up."""
    return total(scrape(run), name, **labels)


def figures(run: Run) -> tuple[str, dict[str, float]]:
    (actor,) = (one for one in read_status(run.directory).roles if one.name == "actor-0")
    return f"{actor.state}: {actor.detail}", dict(actor.stats)


@pytest.mark.fleet
def test_actor_status_shows_its_state_and_why_slots_are_blocked(fleet: Any) -> None:
    run, processes = fleet
    wait_for((run.directory / "cache" / "store" / "identity.json").exists)
    wait_for(lambda: sample(run, "env_failures_total", kind="exception") >= 2)
    assert sample(run, "env_failures_total", kind="hang") == 0
    assert sample(run, "env_step_seconds_count") >= 10
    now = scrape(run)
    assert total(now, "inference_batch_size_bucket", le="1.0") == total(now, "inference_batch_size_count") > 10
    assert sample(run, "cooling_down_slots") == 0
    assert sample(run, "slots") == 2
    processes["replay"].send_signal(signal.SIGSTOP)
    wait_for(lambda: figures(run)[0] == "paused: replay does not take what is queued")
    assert sample(run, "blocked_slots", reason="room") == 2
    assert 1 <= sample(run, "queued_fragments") <= 1 + 2
    _, shown = figures(run)
    assert shown["failed_by_exception"] == shown["env_failures"] >= 2
    assert shown["blocked_for_room"] == 2
    (card,) = (card for card in read_cards(run.directory) if card["name"] == "actor-0")
    assert [(slot.state, slot.reason) for slot in list_slots(card, NOTHING)] == [("blocked", "room")] * 2
    processes["replay"].send_signal(signal.SIGCONT)
    before = sample(run, "env_steps_total")
    wait_for(lambda: sample(run, "env_steps_total") > before + 20)
