"""Measures the environments and the policy without an actor, for `benchmarks/actor_fast.py`. Prints steps per second.

    python -m harness.acting_limit {gymnasium,forward} SECONDS THREADS

gymnasium  `AsyncVectorEnv` over 64 processes, with shared memory and without copies, and our policy step by step: a
           batch of all, with its state and a sample of its actions. Nothing is recorded.
forward    the same batches over frames in memory: no environment at all
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv
from numpy.typing import NDArray

from harness.acting import SLOTS
from harness.acting_envs import BANKS, Frames
from harness.acting_parts import FRAMES_POLICY
from minefleet.config import PolicyConfig
from minefleet.envs import schema_of
from minefleet.policies import build

WARM_UP_S = 3.0
Frame = NDArray[np.uint8]


class Player:
    """Our policy, and the state of every environment."""

    def __init__(self) -> None:
        self._policy = build(PolicyConfig(**FRAMES_POLICY), schema_of(Frames())).eval()
        self._state = self._policy.initial_state(SLOTS)

    @torch.inference_mode()
    def act(self, frames: Frame, first: NDArray[np.bool_]) -> NDArray[np.int64]:
        """An action for every environment; log-probabilities and values are fetched as an actor would."""
        obs, starts = torch.from_numpy(frames).unsqueeze(1), torch.from_numpy(first).unsqueeze(1)
        output, self._state = self._policy(obs, self._state, starts)
        action = self._policy.action_head.sample(output.params)
        self._policy.action_head.logp(output.params, action).numpy()
        self._policy.value_norm.denormalize(output.value).numpy()
        return np.asarray(action.squeeze(1).numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("gymnasium", "forward"))
    parser.add_argument("seconds", type=float)
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    turn, close = {"gymnasium": vector_turns, "forward": bare_turns}[arguments.side]()
    rate(turn, WARM_UP_S)
    print(json.dumps(rate(turn, arguments.seconds)))
    close()


def rate(turn: Callable[[], Any], seconds: float) -> float:
    """Steps per second of turns of all environments."""
    turns, began_s = 0, time.monotonic()
    while time.monotonic() - began_s < seconds:
        turn()
        turns += 1
    return turns * SLOTS / (time.monotonic() - began_s)


def vector_turns() -> tuple[Callable[[], None], Callable[[], None]]:
    envs: AsyncVectorEnv[Any, Any] = AsyncVectorEnv([Frames] * SLOTS, shared_memory=True, copy=False)
    player = Player()
    frames, _ = envs.reset(seed=0)
    first = np.ones(SLOTS, np.bool_)

    def turn() -> None:
        nonlocal frames, first
        frames, _, terminated, truncated, _ = envs.step(player.act(frames, first))
        first = terminated | truncated

    return turn, envs.close


def bare_turns() -> tuple[Callable[[], Any], Callable[[], None]]:
    frames, first = np.load(BANKS["hwc"])[:SLOTS], np.zeros(SLOTS, np.bool_)
    player = Player()
    return lambda: player.act(frames, first), lambda: None


if __name__ == "__main__":
    main()
