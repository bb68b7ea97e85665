"""Finds the stage that limits a run, from the times that the two loops of the ring spend on each thing.

    actors' slots   environment, inference │ room, weights ............ │ grant ...... waits for the learner
    learner's loop  training               │ replay, weights, blocked . │ fragments .. waits for the actors

The loop that waits less for the other one holds the run up, and in it the stage that most of its time goes to.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Stage = Literal["environment", "inference", "replay", "learner", "weights", "balance"]
SLOTS = ("environment", "inference", "grant", "room", "weights", "pace", "balance")
"""An actor's slot may wait for: a step or a reset; the policy, from an observation to the action; room in replay for
another chunk; room in the upload queue; weights that are not too old for a chunk that has room; enough time to make a
chunk before it is too stale; other slots, which have had fewer steps."""
LOOP_STAGES = ("training", "fragments", "replay", "weights", "blocked")
"""Uses of the time of the learner's loop: everything that is none of the others; waits until there are fragments, until
they are read, and until versions are published before which no actor can make any; standing still while weights are
copied."""
SLOT_PREFIX, LOOP_PREFIX = "slot_seconds.", "loop_seconds."
"""Prefixes of a role's statistics."""
CLEAR_SHARE = 0.2
"""A loop that waits less than this share of its time for the other one is as good as busy."""
SENTENCES: Mapping[Stage, str] = {
    "environment": "the environments hold the run up: more rollout_config.worker_config.num_envs, or fewer to a "
    "process (envs_per_process, at least 1), where cores are idle",
    "inference": "the actors' inference holds the run up: rollout_config.worker_config.device on a GPU, or more "
    "rollout_config.num_rollout_workers where cores are idle",
    "replay": "replay holds the run up: rollout_config.replay_buffer_config.compression to what network and processors "
    "bear, or more train_config.num_readers",
    "learner": "the learner holds the run up: train_config.device on a GPU, or fewer train_config.epochs_per_iteration",
    "weights": "the way of the weights holds the run up: a larger rollout_config.replay_buffer_config.max_staleness, "
    "or train_config.wire_dtype bfloat16",
    "balance": "the slowest tasks or environments hold the run up, since others wait for them: more of those, or a "
    "smaller rollout_config.replay_buffer_config.balance_limit",
}
"""Advice on a stage, with the key to turn."""
BALANCED = "nothing holds the run up by itself: neither loop waits long for the other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    """A verdict, and the shares that it follows from."""

    stage: Stage | None
    """None where neither loop waits for the other one."""
    slots: Mapping[str, float]
    """Shares of the time of all slots, by `SLOTS`; the sum is 1."""
    loop: Mapping[str, float]
    """Shares of the learner's time, by `LOOP_STAGES`."""

    @property
    def sentence(self) -> str:
        """Names the stage, and the key to turn."""
        return SENTENCES[self.stage] if self.stage else BALANCED


def find(slots: Mapping[str, float], loop: Mapping[str, float]) -> Bottleneck | None:
    """Finds what holds a run up; None while one of the loops has not been seen at work.

    Args:
        slots: Seconds by `SLOTS`.
        loop: Seconds by `LOOP_STAGES`.
    """
    slots, loop = shares(slots, SLOTS), shares(loop, LOOP_STAGES)
    if not any(slots.values()) or not any(loop.values()):
        return None
    of_actors: dict[Stage, float] = {
        "environment": slots["environment"],
        "inference": slots["inference"],
        "replay": slots["room"],
        "weights": slots["weights"],
        "balance": slots["balance"],
    }
    of_learner: dict[Stage, float] = {
        "learner": loop["training"],
        "replay": loop["replay"],
        "weights": loop["weights"] + loop["blocked"],
    }
    stages = of_actors if loop["fragments"] > slots["grant"] else of_learner
    stage = max(stages, key=lambda stage: stages[stage])
    is_busy = stage in ("environment", "inference", "learner")
    is_balanced = is_busy and max(loop["fragments"], slots["grant"]) < CLEAR_SHARE
    return Bottleneck(stage=None if is_balanced else stage, slots=slots, loop=loop)


def find_in(stats: Iterable[Mapping[str, float]]) -> Bottleneck | None:
    """As `find`, from the statistics of all roles."""
    total: dict[str, float] = {}
    for role in stats:
        for name, value in role.items():
            total[name] = total.get(name, 0.0) + value
    return find(_below(SLOT_PREFIX, total), _below(LOOP_PREFIX, total))


def shares(seconds: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Each one's share of the sum; all 0 where that is 0."""
    total = math.fsum(seconds.values())
    return {name: seconds.get(name, 0.0) / total if total > 0 else 0.0 for name in names}


def _below(prefix: str, stats: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in stats.items() if name.startswith(prefix)}
