"""Processes of one run that may be killed, paused and started again: parameters, replay, a learner and actors.

DIRECTORY/
├── run/           what the roles read and write
├── histories/     one per incarnation of the learner and the actors
└── logs/          one per incarnation of every role
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.history.driver import EXIT_FENCED, architecture
from tests.history.history import Rules
from tests.history.survey import faults_in
from tests.role_process import free_address

from minefleet.config import (
    EndpointConfig,
    EnvConfig,
    FleetConfig,
    ReplayBufferConfig,
    RolloutConfig,
    ServicesConfig,
    TrainConfig,
)
from minefleet.lifeline import tied
from minefleet.run import Run
from minefleet.schema import Leaf, Schema

DRIVE = Path(__file__).with_name("drive.py")
RULES = Rules(fragments_per_chunk=2, max_reuse=2, max_staleness=3)
FRAGMENTS_PER_ITERATION = 8
GRANT_TIMEOUT_S = 1.0
"""Short, so that chunks of killed actors are given up within the test."""

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(4,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
)
PATIENCE_S = 120.0
POLL_S = 0.05
TRAINED, SENT = b'"publish"', b'"outcomes"'
"""What a learner and an actor write when they get on."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a role."""

    process: subprocess.Popen[bytes]
    log: Path
    history: Path

    def written(self) -> int:
        return self.history.stat().st_size if self.history.exists() else 0

    def wrote(self, sign: bytes, offset: int) -> int:
        """How often its history shows a sign after an offset."""
        if not self.history.exists():
            return 0
        with self.history.open("rb") as file:
            file.seek(offset)
            return file.read().count(sign)

    def end(self) -> str:
        """The end of its log."""
        return self.log.read_text()[-3000:]


class Fleet:
    """The processes."""

    def __init__(self, directory: Path, rng: Random, actors: int) -> None:
        self.rng = rng
        self.run = make_run(directory / "run")
        self.histories = directory / "histories"
        self.actors = [f"actor-{number}" for number in range(actors)]
        self.alive: dict[str, Incarnation] = {}
        self._logs = directory / "logs"
        self._autopsy = directory / "autopsy"
        self._lives = Counter[str]()

    @property
    def drivers(self) -> list[str]:
        """Who keeps a history."""
        return ["learner", *self.actors]

    def start(self, role: str) -> None:
        """Begins the next life of a role."""
        name = f"{role}.{self._lives[role]}"
        self._lives[role] += 1
        history, log = self.histories / f"{name}.jsonl", self._logs / f"{name}.log"
        if role in self.drivers:
            program = [str(DRIVE), role.partition("-")[0]]
            program += ["--history", str(history), "--name", name, "--seed", str(self.rng.random())]
        else:
            program = ["-m", f"minefleet_{role}"]
        command = [sys.executable, *program, "--run-dir", str(self.run.directory)]
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stderr=errors, env=os.environ | tied())
        self.alive[role] = Incarnation(process, log, history)

    def kill(self, role: str) -> None:
        """Ends a role with SIGKILL. What replay leaves must add up."""
        process = self.alive[role].process
        process.kill()
        process.wait()
        if role == "replay" and (self.run.replay / "identity.json").exists():
            shutil.copytree(self.run.replay, self._autopsy)
            faults = faults_in(self._autopsy, RULES.fragments_per_chunk)
            shutil.rmtree(self._autopsy)
            assert faults == []

    def stop(self, role: str) -> None:
        """Ends a role with SIGTERM, which must succeed."""
        self.signal(role, signal.SIGTERM)
        self.expect(self.alive[role], 0)

    def expect(self, incarnation: Incarnation, code: int) -> None:
        """Waits for a role to end by itself."""
        assert incarnation.process.wait(PATIENCE_S) == code, incarnation.end()

    def signal(self, role: str, signum: signal.Signals) -> None:
        self.alive[role].process.send_signal(signum)

    def watch(self, seconds: float) -> None:
        """Lets some time pass, in which nobody may die."""
        try:
            self.alive["parameters"].process.wait(seconds)
        except subprocess.TimeoutExpired:
            for role, incarnation in self.alive.items():
                code = incarnation.process.poll()
                assert code is None, f"{role} ended with {code}: {incarnation.end()}"
        else:
            raise AssertionError(self.alive["parameters"].end())

    def get_on(self) -> None:
        """Waits until the learner has trained twice and every actor has sent something."""
        aims = [("learner", TRAINED, 2), *((actor, SENT, 1) for actor in self.actors)]
        starts = {role: self.alive[role].written() for role in self.drivers}
        deadline = time.monotonic() + PATIENCE_S
        while any(self.alive[role].wrote(sign, starts[role]) < count for role, sign, count in aims):
            assert time.monotonic() < deadline, f"no progress: {[self.alive[role].end() for role in self.alive]}"
            self.watch(POLL_S)

    def finish(self) -> None:
        """Ends all roles, some in order and some not, replay last but one and in order."""
        for role in self.drivers:
            self.rng.choice([self.kill, self.stop])(role)
        for role in ("replay", "parameters"):
            self.stop(role)


def make_run(directory: Path) -> Run:
    """Writes a run directory. The store is so large that nothing is ever evicted."""
    replay, parameters = (EndpointConfig(address=free_address()) for _ in range(2))
    buffer = ReplayBufferConfig(
        max_chunks=5000,
        max_bytes=2**30,
        max_reuse=RULES.max_reuse,
        max_staleness=RULES.max_staleness,
        fragments_per_chunk=RULES.fragments_per_chunk,
        grant_timeout_s=GRANT_TIMEOUT_S,
    )
    config = FleetConfig(
        env=EnvConfig(id="CartPole-v1"),
        train_config=TrainConfig(batch_size_per_gpu=FRAGMENTS_PER_ITERATION),
        rollout_config=RolloutConfig(replay_buffer_config=buffer),
        services=ServicesConfig(replay=[replay], parameters=parameters, drain_s=5.0),
    )
    directory.mkdir(parents=True)
    run = Run(directory=directory, config=config, schema=SCHEMA, architecture=architecture())
    run.write()
    return run


@contextmanager
def running(directory: Path, rng: Random, actors: int) -> Iterator[Fleet]:
    """A fleet that gets on. Kills in the end what is still alive."""
    fleet = Fleet(directory, rng, actors)
    for name in ("histories", "logs"):
        (directory / name).mkdir()
    try:
        for role in ("parameters", "replay", *fleet.drivers):
            fleet.start(role)
        fleet.get_on()
        yield fleet
    finally:
        for incarnation in fleet.alive.values():
            incarnation.process.kill()
            incarnation.process.wait()


def kill_replay(fleet: Fleet) -> None:
    fleet.kill("replay")
    fleet.start("replay")


def kill_replay_while_it_starts(fleet: Fleet) -> None:
    kill_replay(fleet)
    fleet.watch(fleet.rng.uniform(0.3, 1.5))
    kill_replay(fleet)


def stop_replay(fleet: Fleet) -> None:
    fleet.stop("replay")
    fleet.start("replay")


def kill_learner(fleet: Fleet) -> None:
    fleet.kill("learner")
    fleet.start("learner")


def stop_learner(fleet: Fleet) -> None:
    fleet.stop("learner")
    fleet.start("learner")


def kill_actor(fleet: Fleet) -> None:
    actor = fleet.rng.choice(fleet.actors)
    fleet.kill(actor)
    fleet.start(actor)


def kill_replay_and_learner(fleet: Fleet) -> None:
    roles = ["replay", "learner"]
    fleet.rng.shuffle(roles)
    for role in roles:
        fleet.kill(role)
    for role in roles:
        fleet.start(role)


def kill_all(fleet: Fleet) -> None:
    roles = ["replay", *fleet.drivers]
    fleet.rng.shuffle(roles)
    for role in roles:
        fleet.kill(role)
    for role in roles:
        fleet.start(role)


def pause_one(fleet: Fleet) -> None:
    role = fleet.rng.choice(["replay", *fleet.drivers])
    fleet.signal(role, signal.SIGSTOP)
    fleet.watch(fleet.rng.uniform(0.1, 3 * GRANT_TIMEOUT_S))
    fleet.signal(role, signal.SIGCONT)


def usurp(fleet: Fleet) -> None:
    """A learner freezes, another takes over, and the first comes back: it must end, refused."""
    frozen = fleet.alive["learner"]
    fleet.signal("learner", signal.SIGSTOP)
    fleet.start("learner")
    fleet.get_on()
    frozen.process.send_signal(signal.SIGCONT)
    fleet.expect(frozen, EXIT_FENCED)


Strike = Callable[[Fleet], None]

STRIKES: dict[Strike, int] = {
    kill_replay: 5,
    kill_replay_while_it_starts: 2,
    stop_replay: 1,
    kill_learner: 3,
    stop_learner: 1,
    kill_actor: 3,
    kill_replay_and_learner: 2,
    kill_all: 1,
    pause_one: 2,
    usurp: 2,
}
"""How often each comes up."""
