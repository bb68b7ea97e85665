"""A task for MineStudio that pixels teach and nothing else does: hit a cow at a random bearing.

The player stands and turns. A swing with the crosshair on the cow kills it and pays 1. Any swing, hit or miss, brings
another cow at another bearing, uniform in ±`SPREAD_DEG` of where the player looks, and the sword needs `RECOVERY` steps
before it swings again.

So a hit must be aimed. For whoever does not see, a swing hits with the same probability whatever was done before it:
the share of the spread that a cow covers. And whoever attacks all the time swings hardly more often than one who
presses keys at random.
"""

import math
import random
from typing import Any

import numpy as np
from minestudio.simulator import MinecraftSim
from minestudio.simulator.callbacks import (
    FastResetCallback,
    JudgeResetCallback,
    MaskActionsCallback,
    MinecraftCallback,
    RewardsCallback,
)

SPREAD_DEG = 50.0
"""The player sees 51 degrees to each side."""
DISTANCE_M = 2.9
"""Within reach, which is 3 m; a cow there is 17.6 degrees wide."""
RECOVERY = 7
IDLE = ("forward", "back", "left", "right", "jump", "sneak", "sprint", "use", "drop", "inventory")


class CowCallback(MinecraftCallback):  # type: ignore[misc]  # Of a package that this interpreter lacks.
    """The rules of swings. Stands behind the callback that pays, and so knows a hit."""

    def __init__(self) -> None:
        super().__init__()
        self._recovery = 0
        self._is_swinging = False
        self._counts = {"swings": 0.0, "hits": 0.0}

    def after_reset(self, sim: Any, obs: Any, info: Any) -> tuple[Any, Any]:
        """Clears the meadow, turns the player to the south, and brings the first cow."""
        self._recovery, self._counts = 0, {"swings": 0.0, "hits": 0.0}
        sim.env.execute_cmd("/kill @e[type=!player]")
        sim.env.execute_cmd("/tp @p ~ ~ ~ 0 0")
        return _bring_cow(sim, yaw=0.0)

    def before_step(self, sim: Any, action: dict[str, Any]) -> dict[str, Any]:
        """Keeps the player's head level, and the sword down while it recovers."""
        action["camera"] = np.asarray(action["camera"], float) * (0.0, 1.0)
        self._recovery = max(0, self._recovery - 1)
        if self._recovery:
            action["attack"] = 0
        self._is_swinging = bool(action["attack"])
        return action

    def after_step(
        self, sim: Any, obs: Any, reward: float, terminated: bool, truncated: bool, info: Any
    ) -> tuple[Any, float, bool, bool, Any]:
        """Brings another cow after a swing."""
        if self._is_swinging:
            self._recovery = RECOVERY
            self._counts["swings"] += 1
            self._counts["hits"] += reward
            if not reward:
                sim.env.execute_cmd("/kill @e[type=cow]")
            obs, info = _bring_cow(sim, float(info["location_stats"]["yaw"]))
        info["metrics"] = dict(self._counts)
        return obs, reward, terminated, truncated, info


class BlankCallback(MinecraftCallback):  # type: ignore[misc]
    """Shows black frames."""

    def after_reset(self, sim: Any, obs: Any, info: Any) -> tuple[Any, Any]:
        """Blackens the frame."""
        return _blank(obs), info

    def after_step(
        self, sim: Any, obs: Any, reward: float, terminated: bool, truncated: bool, info: Any
    ) -> tuple[Any, float, bool, bool, Any]:
        """Blackens the frame."""
        return _blank(obs), reward, terminated, truncated, info


def make(*, steps: int = 100, size: int = 32, is_blank: bool = False) -> MinecraftSim:
    """Makes the task.

    Args:
        steps: Length of an episode.
        size: Height and width of the image.
        is_blank: Show black frames.
    """
    hits = {"event": "kill_entity", "objects": ["cow"], "reward": 1.0, "identity": "cow", "max_reward_times": steps}
    return MinecraftSim(
        obs_size=(size, size),
        render_size=(128, 72),
        preferred_spawn_biome="plains",
        num_empty_frames=1,
        callbacks=[
            FastResetCallback(biomes=["plains"], random_tp_range=1000),
            MaskActionsCallback(**dict.fromkeys(IDLE, 0)),
            RewardsCallback([hits]),
            CowCallback(),
            *([BlankCallback()] if is_blank else []),
            JudgeResetCallback(steps),
        ],
    )


def _bring_cow(sim: Any, yaw: float) -> tuple[Any, Any]:
    bearing = math.radians(yaw + random.uniform(-SPREAD_DEG, SPREAD_DEG))
    x, z = -math.sin(bearing) * DISTANCE_M, math.cos(bearing) * DISTANCE_M
    obs, _, _, info = sim.env.execute_cmd(f"/summon minecraft:cow ~{x:.3f} ~ ~{z:.3f} {{Health:1f}}")
    return sim._wrap_obs_info(obs, info)  # type: ignore[no-any-return]


def _blank(obs: Any) -> Any:
    return {**obs, "image": np.zeros_like(obs["image"])}
