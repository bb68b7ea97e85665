"""PPO in one process and a few seconds, for tests that something can be learned: a pool, a policy, an updater.

The policy acts in all slots at once and is trained on each slot's steps as one fragment; nothing is stale.
"""

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from minefleet.config import EnvConfig, PolicyConfig, TrainConfig, WorkerConfig
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree, tree_map
from minefleet.envs import make, schema_of
from minefleet.policies import build
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.pool import InlinePool
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import collate
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

SLOTS = 8
STEPS = 32
EVERY_SLOT = np.arange(SLOTS)


@dataclass(slots=True)
class Rows:
    """The steps of one slot."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    cuts: dict[int, Tree] = field(default_factory=dict)
    """The observations after steps that were cut."""

    def fragment(self) -> Fragment:
        """All of it."""
        stacked = tree_map(lambda *leaves: np.stack(leaves), self.steps[0], *self.steps[1:])
        if np.all(stacked["duration"] == 1):
            del stacked["duration"]
        cut_obs = tree_map(lambda *leaves: np.stack(leaves), *self.cuts.values())
        return Fragment(
            **stacked,
            crash=np.zeros(len(self.steps), np.bool_),
            next_value=np.zeros(len(self.steps), np.float32),
            cut_index=np.array(list(self.cuts), np.int32),
            cut_obs=cut_obs,
            recurrent_state={},
        )


def practise(env: EnvConfig, policy: PolicyConfig, train: TrainConfig, iterations: int) -> list[float]:
    """Trains a policy without memory; returns the mean reward per step of each iteration."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with closing(make(env)) as one:
        schema = schema_of(one)
    pool = InlinePool(env, schema, WorkerConfig(num_envs=SLOTS), seed=0, actor_index=0, discount=train.discount)
    made = build(policy, schema)
    updater = Updater(made, build_optimizer(made, train), train, None)
    inference = PolicyRunner(made, schema, SLOTS, device=torch.device("cpu"), seed=0, greedy=False)
    pool.start()
    with closing(pool):
        _reset(pool, inference, EVERY_SLOT)
        return [_iterate(pool, inference, updater, train, number) for number in range(iterations)]


def _iterate(pool: InlinePool, inference: PolicyRunner, updater: Updater, train: TrainConfig, number: int) -> float:
    rows = [Rows() for _ in range(SLOTS)]
    for step in range(STEPS):
        _step(pool, inference, rows, step, number)
    fragments = [one.fragment() for one in rows]
    updater.update(
        collate([((f"s{slot}", number), one) for slot, one in enumerate(fragments)]), rates(train, number, 0)
    )
    return float(np.mean([fragment.reward.mean() for fragment in fragments]))


def _step(pool: InlinePool, inference: PolicyRunner, rows: list[Rows], step: int, version: int) -> None:
    obs = tree_map(np.copy, pool.obs)
    decision = inference.decide(EVERY_SLOT, obs)
    pool.step(EVERY_SLOT, decision.action)
    ready = pool.wait(0.0)
    assert not ready.failures, ready.failures
    for slot in EVERY_SLOT:
        row = {"obs": obs, "action": decision.action, "behaviour_logp": decision.logp, "first": decision.first}
        row |= {"behaviour_value": decision.value, "reward": ready.discounted_reward}
        row |= {"duration": ready.duration, "terminated": ready.terminated}
        row |= {"truncated": ready.truncated, "policy_version": np.full(SLOTS, version, np.uint32)}
        rows[slot].steps.append(tree_map(lambda leaf, at=slot: leaf[at], row))
        if ready.truncated[slot] or (step == STEPS - 1 and not ready.terminated[slot]):
            rows[slot].cuts[step] = tree_map(lambda leaf, at=slot: leaf[at].copy(), pool.obs)
    over = EVERY_SLOT[ready.terminated | ready.truncated]
    if len(over):
        _reset(pool, inference, over)


def _reset(pool: InlinePool, inference: PolicyRunner, slots: Any) -> None:
    inference.reset(slots)
    pool.reset(slots)
    ready = pool.wait(0.0)
    assert not ready.failures, ready.failures
