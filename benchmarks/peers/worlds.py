"""Environments of `benchmarks/learning.py` and `health_gathering.py`, the same for both sides: generators of a peer's
interpreter."""

import sys
from pathlib import Path
from typing import Any

import gymnasium

sys.path.append(str(Path(__file__).parents[2] / "clients"))

Env = gymnasium.Env[Any, Any]


def cartpole() -> Env:
    """Balances a pole; return 500 at most."""
    return gymnasium.make("CartPole-v1")


def acrobot() -> Env:
    """Swings up two links; -1 a step until they are."""
    return gymnasium.make("Acrobot-v1")


def pendulum() -> Env:
    """Swings up by a torque."""
    return gymnasium.make("Pendulum-v1")


def lunarlander() -> Env:
    """Lands between two flags; 200 counts as solved."""
    return gymnasium.make("LunarLander-v3")


def hopper() -> Env:
    """Hops on one leg."""
    return gymnasium.make("Hopper-v5")


def breakout() -> Env:
    """Breakout on ten by ten cells, its four channels in one vector."""
    from minefleet.envs.minatar import flat

    return gymnasium.wrappers.TimeLimit(flat("breakout", use_minimal_action_set=True), 2_500)


def recall() -> Env:
    """Names a cue that was shown 16 steps before."""
    from minefleet.envs.recall import Recall

    return Recall(delay=16)


def health_gathering() -> Env:
    """VizDoom's maze with an acid floor."""
    from minefleet.envs.vizdoom import HealthGathering

    return HealthGathering()
