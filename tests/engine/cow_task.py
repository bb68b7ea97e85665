"""A task for MineStudio that pixels teach and nothing else does: hit a cow at a random bearing.

A cow stands somewhere in the field of view, within reach. A hit in the crosshair kills it, pays 1 and brings the next
one elsewhere. All that chance decides comes from `sim.np_random`.
"""

import math
from typing import Any

import numpy as np
from minestudio.simulator import MinecraftSim
from minestudio.simulator.callbacks import (
    JudgeResetCallback,
    MaskActionsCallback,
    MinecraftCallback,
    RewardsCallback,
)

ALL_COWS = 10**6
STILL = ("forward", "back", "left", "right", "jump", "sneak", "sprint", "use", "drop", "inventory")


class CowCallback(MinecraftCallback):  # type: ignore[misc]  # Of a package that this interpreter lacks.
    """Puts the player on a meadow, and a cow before him whenever there is none."""

    def __init__(self, bearing_deg: float, distance: float, level: bool) -> None:
        super().__init__()
        self._bearing_deg, self._distance, self._level = bearing_deg, distance, level
        self._killed = 0

    def before_reset(self, sim: Any, reset_flag: bool) -> bool:
        """The first reset makes the world; after that it is the player who is put back."""
        return reset_flag and not sim.already_reset

    def before_step(self, sim: Any, action: dict[str, Any]) -> dict[str, Any]:
        """Keeps the player's head level, if asked to."""
        if self._level:
            action["camera"] = np.asarray(action["camera"], float) * (0.0, 1.0)
        return action

    def after_reset(self, sim: Any, obs: Any, info: Any) -> tuple[Any, Any]:
        """Clears the meadow and brings the first cow."""
        for command in ("/teleportbiome @a plains 0 64 0", "/tp @a 0 64 0 0 0", "/kill @e[type=!player]"):
            seen, _, _, _ = sim.env.execute_cmd(command)
        self._killed = _kills(seen)
        return self._bring(sim, yaw=0.0)

    def after_step(
        self, sim: Any, obs: Any, reward: float, terminated: bool, truncated: bool, info: Any
    ) -> tuple[Any, float, bool, bool, Any]:
        """Brings the next cow."""
        if _kills(info) > self._killed:
            self._killed = _kills(info)
            obs, info = self._bring(sim, float(info["player_pos"]["yaw"]))
        return obs, reward, terminated, truncated, info

    def _bring(self, sim: Any, yaw: float) -> tuple[Any, Any]:
        bearing = math.radians(yaw + sim.np_random.uniform(-self._bearing_deg, self._bearing_deg))
        x, z = -math.sin(bearing) * self._distance, math.cos(bearing) * self._distance
        obs, _, _, info = sim.env.execute_cmd(f"/summon minecraft:cow ~{x:.3f} ~ ~{z:.3f} {{Health:1f}}")
        return sim._wrap_obs_info(obs, info)  # type: ignore[no-any-return]


def make(
    *, steps: int = 100, bearing_deg: float = 50.0, distance: float = 2.6, still: bool = True, level: bool = True
) -> MinecraftSim:
    """Makes the task.

    Args:
        steps: Length of an episode.
        bearing_deg: A cow is up to so many degrees left or right of where the player looks; he sees 51.
        distance: Metres to the cow; it can be hit from 3.
        still: Whether the player can but turn and hit.
        level: Whether he looks straight ahead, up and down.
    """
    masks = [MaskActionsCallback(**dict.fromkeys(STILL, 0))] if still else []
    cows = {"event": "kill_entity", "objects": ["cow"], "reward": 1.0, "identity": "cow", "max_reward_times": ALL_COWS}
    return MinecraftSim(
        obs_size=(128, 128),
        preferred_spawn_biome="plains",
        num_empty_frames=1,
        callbacks=[
            *masks,
            CowCallback(bearing_deg, distance, level),
            RewardsCallback([cows]),
            JudgeResetCallback(steps),
        ],
    )


def _kills(told: Any) -> int:
    return int(told["kill_entity"]["cow"])
