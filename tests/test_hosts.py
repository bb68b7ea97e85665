"""Whole fleets whose environments run elsewhere: on hosts, and in games that dial in by themselves."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from examples.elsewhere import env_generator
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.deploy.programs import program
from tests.minefleet_actor.hosted import ServedPool
from tests.minefleet_actor.test_pool_faults import kinds, results
from tests.role_process import TIMEOUT_S, free_address

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.envs import schema_of
from minefleet.monitoring.env_death_groups import read_deaths
from minefleet.monitoring.status import read_status
from minefleet.runs.episode_table import read_episodes
from minefleet_actor.pool import Kind

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.fleet

Train = Callable[..., Fleet]
HOSTED = "rollout_config.worker_config.hosted=true"
PACKAGES = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1")
WALKER = '''
import sys
import time

import grpc
import numpy as np
from world_client import play


class Walker:
    """The corridor of examples/world.js; the fourth step of each tenth episode raises."""

    episodes = 0

    def reset(self, seed):
        self.place, self.steps, self.episodes = 0, 0, self.episodes + 1
        return {"": np.zeros(1, np.float32)}

    def step(self, action):
        self.steps += 1
        if self.episodes % 10 == 0 and self.steps == 4:
            raise RuntimeError("the floor gives way")
        self.place = max(0, self.place + (1 if action[""] else -1))
        over = self.place == 10
        return {"": np.float32([self.place / 10])}, 1.0 if over else -0.01, over, not over and self.steps == 100


while True:
    try:
        play(sys.argv[1], [Walker(), Walker(), Walker(), Walker()])
    except grpc.RpcError as error:
        print(error.details(), flush=True)
        assert not {"google.protobuf", "minefleet"} & set(sys.modules)
        time.sleep(0.2)
'''
WRONG_CLOCK = """
import time

real = time.time
time.time = lambda: real() + 3600.0
"""


@contextmanager
def process(*command: str, **options: object) -> "Iterator[subprocess.Popen[bytes]]":
    started = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        yield started
    finally:
        started.kill()
        started.wait(TIMEOUT_S)


def host(address: str, *, python_path: str = "") -> "subprocess.Popen[bytes]":
    path = os.pathsep.join([python_path, os.environ.get("PYTHONPATH", "")])
    command = [*COMMAND, "host", "cartpole", "rollout_config.worker_config.num_envs=4", "--actor", address]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})


def test_fleet_on_two_hosts_of_which_one_is_killed_and_one_has_a_wrong_clock_accounts_for_every_step(
    train: Train, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK)
    address = free_address()
    hosts = [host(address), host(address, python_path=str(tmp_path))]
    fleet = train("cartpole", "stop.env_steps=12000", "seed=4", HOSTED, f"services.actor.address={address}")
    try:
        fleet.wait_for_env_steps(4_000)
        actor = next(role for role in read_status(fleet.directory).roles if role.name.startswith("actor"))
        names = sorted(f"{socket.gethostname()}-{each.pid} 4" for each in hosts)
        assert sorted(actor.detail.removeprefix("hosts: ").split(", ")) == names
        hosts[0].kill()
        fleet.wait_for_env_steps(6_000)
        hosts.append(host(address))
        result = fleet.finish()
        rows = fleet.rows()
        assert result["stopped_by"] == "env_steps" and result["episode_return_mean"] > 40
        assert_counters_never_go_back(rows)
        assert rows[-1]["trained_steps"] > 0.9 * rows[-1]["env_steps"]
        played = read_episodes(fleet.directory / "episodes.csv")
        assert {row["failure"] for row in played} == {"", "exit"}
        assert sum(row["failure"] == "exit" for row in played) == 4
        (death,) = read_deaths(fleet.directory)
        assert death["cannot_repeat"] == "it ran on a host" and "has gone" in death["text"]
        for survivor in hosts[1:]:
            survivor.send_signal(signal.SIGTERM)
            assert survivor.wait(TIMEOUT_S) == 0
    finally:
        for each in hosts:
            each.kill()
            each.wait(TIMEOUT_S)


def test_fleet_learns_a_game_that_dials_in_from_one_file_without_protobuf(train: Train, tmp_path: Path) -> None:
    (tmp_path / "walker.py").write_text(WALKER)
    address = free_address()
    path = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    with process(sys.executable, str(tmp_path / "walker.py"), address, env=path) as world:
        fleet = train(str(EXAMPLES / "elsewhere.py"), f"services.actor.address={address}")
        assert fleet.finish()["episode_return_mean"] > 0.8
        assert fleet.rows()[-1]["episode_failures_by_kind"].keys() == {"exception"}
        assert world.poll() is None


@pytest.fixture(scope="module")
def node_path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a world in JavaScript."""
    place = tmp_path_factory.mktemp("node")
    install = [program("npm", "npm"), "install", "--silent", "--no-save", "--prefix", str(place), *PACKAGES]
    if subprocess.run(install, check=False, timeout=TIMEOUT_S).returncode:
        pytest.skip("npm cannot install @grpc/grpc-js")
    return {**os.environ, "NODE_PATH": str(place / "node_modules")}


def test_a_world_in_javascript_dials_again_after_its_stream_has_ended(node_path: dict[str, str]) -> None:
    address, schema = free_address(), schema_of(env_generator())
    with process(program("node", "nodejs"), str(EXAMPLES / "world.js"), address, "2", env=node_path):
        for _ in range(2):
            pool = ServedPool(EnvConfig(), schema, WorkerConfig(num_envs=2), seed=0, actor_index=0)
            pool.listen = address
            pool.start()
            pool.reset(np.arange(2))
            assert kinds(results(pool, {0, 1})) == {0: Kind.RESET, 1: Kind.RESET}
            pool.close()


def test_fleet_learns_a_game_in_javascript_that_dials_in(train: Train, node_path: dict[str, str]) -> None:
    address = free_address()
    with process(program("node", "nodejs"), str(EXAMPLES / "world.js"), address, "4", env=node_path):
        fleet = train(str(EXAMPLES / "elsewhere.py"), f"services.actor.address={address}")
        assert fleet.finish()["episode_return_mean"] > 0.8


def test_config_of_spaces_alone_is_refused_where_no_game_can_dial_in(tmp_path: Path) -> None:
    command = [*COMMAND, "train", str(EXAMPLES / "elsewhere.py"), HOSTED.replace("true", "false")]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 2 and "runs elsewhere" in done.stderr and HOSTED in done.stderr
    assert not list(tmp_path.glob("runs/*"))
