"""A pool whose environments die as they are told, and what an actor keeps of it: `python FILE EPISODES` plays many."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minefleet.config import EnvConfig, FleetConfig, RolloutConfig, WorkerConfig
from minefleet.core.tree import tree_map
from minefleet.envs import make, schema_of
from minefleet.monitoring.env_death_groups import read_deaths
from minefleet.runs.run_yaml import Run
from minefleet_actor.env_death_recorder import DeathRecorder
from minefleet_actor.pool import EnvPool, Kind, Pool

FAULTY = Path(__file__).with_name("faulty_env.py")
GO_ON, END = 0, 1
PLANTED = {
    3: "ZeroDivisionError@faulty_env.py:",
    13: "ValueError@faulty_env.py:",
    15: "SIGSEGV",
    4: "hang:STEP",
    23: "memory",
    11: "contract:observation-count-must-be-finite",
}
"""Actions that kill in six ways, and the groups of those deaths."""
LIMIT_BYTES = 150_000_000
WAIT_S = 60.0


def make_run(directory: Path, env: EnvConfig, **worker: Any) -> Run:
    config = FleetConfig(env=env, rollout_config=RolloutConfig(worker_config=WorkerConfig(**worker)))
    return Run(directory=directory, config=config, schema=schema_of(make(env)), architecture="")


def faulty_run(directory: Path, **worker: Any) -> Run:
    return make_run(directory, EnvConfig(generator=f"{FAULTY}:Faulty", kwargs={"directory": str(directory)}), **worker)


@dataclass(slots=True)
class PlayedPool:
    """A pool that is played as an actor plays it, and its recorder."""

    run: Run
    kind: type[Pool] = EnvPool
    pool: Pool = field(init=False)
    recorder: DeathRecorder = field(init=False)

    def __post_init__(self) -> None:
        worker = self.run.config.rollout_config.worker_config
        shape = self.run.frame_shape
        self.pool = self.kind(self.run.config.env, self.run.schema, worker, seed=0, actor_index=0, frame_shape=shape)
        self.recorder = DeathRecorder(self.run, self.pool, "actor-0")

    def __enter__(self) -> "PlayedPool":
        self.pool.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.recorder.close()

    def play(self, choose: Callable[[int], Any], goes_on: Callable[[], bool], died: Callable[[int], object]) -> None:
        """Plays all slots: `choose` an action for one, until nothing goes on; says which slots died."""
        slots = np.arange(self.pool.num_slots)
        is_resetting = np.ones(len(slots), np.bool_)
        self.pool.reset(slots)
        while goes_on():
            ready = self.pool.wait(WAIT_S)
            for slot, failure in ready.failures.items():
                self.recorder.keep(slot, failure, ready.endings[slot].task, in_reset=bool(is_resetting[slot]))
                died(slot)
            for slot in ready.slots[ready.kind == Kind.RESET].tolist():
                self.recorder.began(slot)
            over = (ready.kind == Kind.FAILED) | (ready.terminated | ready.truncated)
            is_resetting[ready.slots] = over
            for slot in ready.slots[over].tolist():
                self.pool.reset(np.array([slot]))
            going = ready.slots[~over]
            if len(going):
                action = tree_map(lambda *rows: np.stack(rows), *(choose(slot) for slot in going.tolist()))
                self.recorder.act(going, action)
                self.pool.step(going, action)


def plant(directory: Path, *, episodes: int, deaths: int = 40, slots: int = 8) -> tuple[int, list[tuple[str, str]]]:
    """Plays so many episodes with deaths in them; returns their number, and each death's group as planted and found."""
    worker = {"num_envs": slots, "step_timeout_s": 10.0, "max_rss_bytes": LIMIT_BYTES, "max_consecutive_failures": 99}
    random, played = np.random.default_rng(0), 0
    due = sorted(random.choice(np.arange(slots, episodes - 5 * slots), deaths, replace=False).tolist())
    ways = random.permutation([*PLANTED] * (deaths // len(PLANTED) + 1))[:deaths].tolist()
    planted, found, steps = dict[int, int](), list[str](), np.zeros(slots, np.int64)

    def choose(slot: int) -> int:
        nonlocal played
        steps[slot] += 1
        if steps[slot] % 4 or slot in planted:  # One that takes too much memory must not end before it is killed.
            return GO_ON
        played += 1
        if due and played >= due[0]:
            due.pop(0)
            planted[slot] = ways.pop()
            return planted[slot]
        return END

    with PlayedPool(faulty_run(directory, **worker)) as player:
        player.play(
            choose,
            lambda: played < episodes or bool(planted),
            lambda slot: found.append(PLANTED.get(planted.pop(slot, -1), "none")),
        )
    return played, list(zip(found, (death["group"] for death in read_deaths(directory)), strict=True))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        count, pairs = plant(Path(place), episodes=int(sys.argv[1]))
        right = sum(group.startswith(way) for way, group in pairs)
        sys.exit("\n".join([*map(str, sorted(set(pairs))), f"{count} episodes, {len(pairs)} deaths, {right} right"]))
