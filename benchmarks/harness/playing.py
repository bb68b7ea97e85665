"""One actor in this process and in lockstep: environments, inference and recorder are those of the fleet.

Every slot makes a fragment per round, by the weights that were swapped in last; nothing waits and nothing is sent. So
what is acted depends on the seed alone.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, tree_map
from minefleet.envs import make, schema_of
from minefleet_actor.inference.policy_outputs import PolicyStep
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.pool import InlinePool
from minefleet_actor.rollout.fragment_recorder import Recorder

Slots = NDArray[np.intp]
Named = list[tuple[tuple[str, int], Fragment]]


def schema_of_env(env: EnvConfig) -> Schema:
    """The schema of the environment."""
    with closing(make(env)) as one:
        return schema_of(one)


class Player:
    """Slots that play on and on. `close` ends the environments."""

    def __init__(self, env: EnvConfig, schema: Schema, inference: PolicyRunner, *, slots: int, length: int, seed: int):
        self.inference = inference
        self.returns: list[float] = []
        """Of all finished episodes."""
        self.lengths: list[int] = []
        """Likewise, steps."""
        self._length = length
        self._every = np.arange(slots)
        self._recorder = Recorder(schema, slots, length)
        self._pool = InlinePool(env, schema, WorkerConfig(num_envs=slots), seed=seed, actor_index=0)
        self._round = 0
        self._return, self._steps = np.zeros(slots), np.zeros(slots, np.int64)
        self._pool.start()
        self._reset(self._every)

    def swap(self, weights: Mapping[str, NDArray[Any]], version: int) -> None:
        """Acts by these weights from here on."""
        self.inference.swap(weights, version)

    def play(self) -> Named:
        """One fragment of every slot; those of a slot continue each other."""
        for step in range(self._length):
            self._step(begins=step == 0)
        self._look(self._every[self._recorder.pending])
        fragments = [self._recorder.close(slot, self._obs(slot)) for slot in self._every.tolist()]
        self._round += 1
        return [((f"slot-{slot}", self._round - 1), one) for slot, one in enumerate(fragments) if one is not None]

    def close(self) -> None:
        """Closes the environments."""
        self._pool.close()

    def _step(self, *, begins: bool) -> None:
        obs = tree_map(np.copy, self._pool.obs)
        decision = self.inference.decide(self._every, obs, begins=np.full(len(self._every), begins))
        self._recorder.see(self._every, decision.value)
        for slot, state in decision.before.items():
            self._recorder.begin(slot, state)
        self._act(decision, obs)
        self._pool.step(self._every, decision.action)
        ready = self._pool.wait(0.0)
        assert not ready.failures, ready.failures
        self._recorder.result(ready.slots, ready.reward, ready.terminated, ready.truncated)
        self._return[ready.slots] += ready.reward
        self._steps[ready.slots] += 1
        self._end(ready.slots[ready.truncated & ~ready.terminated], ready.slots[ready.terminated])

    def _act(self, decision: PolicyStep, obs: Tree) -> None:
        self._recorder.act(
            self._every, obs, decision.action, decision.logp, decision.value, decision.first, decision.version
        )

    def _end(self, truncated: Slots, terminated: Slots) -> None:
        for slot in truncated.tolist():
            self._recorder.cut(slot, self._obs(slot))
        self._look(truncated)
        over = np.concatenate((truncated, terminated))
        self.returns.extend(self._return[over].tolist())
        self.lengths.extend(self._steps[over].tolist())
        self._return[over] = self._steps[over] = 0
        self._reset(over)

    def _look(self, slots: Slots) -> None:
        """Values what slots see, without acting on it."""
        if len(slots):
            decision = self.inference.decide(slots, self._pool.obs, keeps=np.zeros(len(slots), np.bool_))
            self._recorder.see(slots, decision.value)

    def _reset(self, slots: Slots) -> None:
        if not len(slots):
            return
        self.inference.reset(slots)
        self._pool.reset(slots)
        ready = self._pool.wait(0.0)
        assert not ready.failures, ready.failures

    def _obs(self, slot: int) -> Tree:
        return tree_map(lambda leaf: leaf[slot], self._pool.obs)


def steps_of(named: Iterable[tuple[tuple[str, int], Fragment]]) -> int:
    """The number of steps of all fragments."""
    return sum(len(fragment) for _, fragment in named)
