"""Both sides of `benchmarks/minerl.py`, under MineRL's interpreter: SERVICES ID ROUNDS STEPS.

Prints a JSON list of steps per second by side, one dict per round.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import Any

SEED = 7
WARM_UP_STEPS = 50
REWARD = {"event": "mine_block", "objects": ["oak_log"], "reward": 1.0}


def main() -> None:
    services, name, rounds, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, services)
    sides = {"ours": ours(name), "bare": bare(name)}
    for play in sides.values():
        play(WARM_UP_STEPS)
    figures = []
    for number in range(rounds):
        order = sorted(sides, reverse=number % 2 == 1)
        measured = {side: sides[side](steps) for side in order}
        figures.append({side: measured[side] for side in sides})
    print(json.dumps(figures))


def chosen(steps: int) -> list[dict[str, int]]:
    """The actions of a round, the same for both."""
    numbers = random.Random(SEED)
    return [{"buttons": numbers.randrange(8640), "camera": numbers.randrange(121)} for _ in range(steps)]


def ours(name: str) -> Callable[[int], float]:
    from minefleet_worker.minecraft.minerl import make

    env = make(name, rewards=[REWARD], ends_at_death=False)
    return player(lambda: env.reset(seed=SEED), env.step, lambda action: action)


def bare(name: str) -> Callable[[int], float]:
    import gym  # type: ignore[import-not-found]  # MineRL's interpreter has it.

    from minefleet_worker.minecraft.actions import to_engine

    env = gym.make(name)
    noop = env.action_space.noop()

    def reset() -> None:
        env.seed(SEED)
        env.reset()

    return player(reset, env.step, lambda action: {**noop, **to_engine(action)})


def player(
    reset: Callable[[], Any], step: Callable[[Any], Any], prepared: Callable[[dict[str, int]], Any]
) -> Callable[[int], float]:
    """A function that plays so many steps and returns steps per second."""

    def play(steps: int) -> float:
        actions = [prepared(action) for action in chosen(steps)]
        reset()
        began_s = time.monotonic()
        for action in actions:
            step(action)
        return steps / (time.monotonic() - began_s)

    return play


if __name__ == "__main__":
    main()
