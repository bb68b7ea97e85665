"""Both sides of `benchmarks/minerl.py`, under MineRL's interpreter: CLIENTS ID ROUNDS STEPS.

Prints a JSON list of steps per second by side, one dict per round.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SEED = 7
SLICE_STEPS = 20
"""Steps that a side plays before it is the other's turn."""
REWARD = {"event": "mine_block", "objects": ["oak_log"], "reward": 1.0}

Action = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """An environment and the actions as it takes them."""

    reset: Callable[[], Any]
    step: Callable[[Action], Any]
    prepared: Callable[[Action], Action]

    def play(self, actions: list[Action]) -> float:
        """Steps through actions; returns the seconds."""
        ready = [self.prepared(action) for action in actions]
        began_s = time.monotonic()
        for action in ready:
            self.step(action)
        return time.monotonic() - began_s


def main() -> None:
    services, name, rounds, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, services)
    sides = {"ours": ours(name), "bare": bare(name)}
    play_round(sides, SLICE_STEPS)
    print(json.dumps([play_round(sides, steps) for _ in range(rounds)]))


def play_round(sides: dict[str, Side], steps: int) -> dict[str, float]:
    """Steps per second by side, over slices in turn."""
    taken_s = dict.fromkeys(sides, 0.0)
    actions = chosen(steps)
    for side in sides.values():
        side.reset()
    for number, start in enumerate(range(0, steps, SLICE_STEPS)):
        for name in sorted(sides, reverse=number % 2 == 1):
            taken_s[name] += sides[name].play(actions[start : start + SLICE_STEPS])
    return {name: steps / seconds for name, seconds in taken_s.items()}


def chosen(steps: int) -> list[Action]:
    """The actions of a round, the same for both. None opens the inventory."""
    numbers = random.Random(SEED)
    return [{"buttons": numbers.randrange(8640), "camera": numbers.randrange(121)} for _ in range(steps)]


def ours(name: str) -> Side:
    from minefleet_env.minecraft.minerl_env import make

    env = make(name, rewards=[REWARD], ends_at_death=False)
    return Side(lambda: env.reset(seed=SEED), env.step, lambda action: action)


def bare(name: str) -> Side:
    import gym  # MineRL's interpreter has it.

    from minefleet_env.minecraft.actions import to_engine

    env = gym.make(name)
    noop = env.action_space.no_op()

    def reset() -> None:
        env.seed(SEED)
        env.reset()

    return Side(reset, env.step, lambda action: {**noop, **to_engine(action)})


if __name__ == "__main__":
    main()
