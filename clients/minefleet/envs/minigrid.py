"""MiniGrid (Chevalier-Boisvert et al. 2023, https://arxiv.org/abs/2306.13831) as vectors."""

from typing import Any

import gymnasium
from gymnasium.wrappers import FlattenObservation
from minigrid.wrappers import ImgObsWrapper


def flat(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:  # noqa: A002  # As Gymnasium calls it.
    """An environment that shows what lies ahead, and no mission.

    obs     [147] uint8: 7 by 7 cells, of each the numbers of its object, its colour and its state

    It draws only what is filmed.
    """
    made = gymnasium.make(f"minigrid:{id}", **{"render_mode": "rgb_array", **kwargs})
    return FlattenObservation(ImgObsWrapper(made))
