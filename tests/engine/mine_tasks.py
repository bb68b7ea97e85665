"""Tasks for MineStudio's models: the simulator with callbacks that observe, and declare the space of it."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from minestudio.simulator import MinecraftSim
from minestudio.simulator.callbacks import (
    FastResetCallback,
    JudgeResetCallback,
    MinecraftCallback,
    PrevActionCallback,
    RewardsCallback,
)

SIDE = 64
MASK = spaces.Box(0, 1, (SIDE, SIDE), np.uint8)
OBJECT = spaces.Box(-1, 8, (), np.int64)
"""MineStudio's number of an interaction; -1 for none, which is why it is no category."""
BUTTONS = ("attack", "use", "forward", "jump")


class SegmentCallback(MinecraftCallback):  # type: ignore[misc]  # Of a package that this interpreter lacks.
    """Observes as PointCallback does, without its window: a moving object in the picture."""

    observation_space: ClassVar = {"segment": spaces.Dict({"obj_mask": MASK, "obj_id": OBJECT})}

    def after_reset(self, sim: Any, obs: Any, info: Any) -> tuple[Any, Any]:
        """Begins to count."""
        self._steps = 0
        obs["segment"] = {"obj_mask": self._mask(), "obj_id": -1}
        return obs, info

    def after_step(
        self, sim: Any, obs: Any, reward: float, terminated: bool, truncated: bool, info: Any
    ) -> tuple[Any, float, bool, bool, Any]:
        """Moves on."""
        self._steps += 1
        obs["segment"] = {"obj_mask": self._mask(), "obj_id": 2}
        return obs, reward, terminated, truncated, info

    def _mask(self) -> Any:
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[:, self._steps % SIDE] = 1
        return mask


class CrossViewCallback(SegmentCallback):
    """The picture that the episode began with, with the mask of an object in it."""

    observation_space: ClassVar = {
        "cross_view": spaces.Dict(
            {"image": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8), "mask": MASK, "obj_id": OBJECT}
        )
    }

    def after_reset(self, sim: Any, obs: Any, info: Any) -> tuple[Any, Any]:
        """Keeps the picture."""
        obs, info = super().after_reset(sim, obs, info)
        self._image = obs["image"].copy()
        return self._shown(obs), info

    def after_step(
        self, sim: Any, obs: Any, reward: float, terminated: bool, truncated: bool, info: Any
    ) -> tuple[Any, float, bool, bool, Any]:
        """Shows it again."""
        obs, *rest = super().after_step(sim, obs, reward, terminated, truncated, info)
        return (self._shown(obs), *rest)

    def _shown(self, obs: Any) -> Any:
        segment = obs.pop("segment")
        obs["cross_view"] = {"image": self._image, "mask": segment["obj_mask"], "obj_id": segment["obj_id"]}
        return obs


class LastActionCallback(PrevActionCallback):  # type: ignore[misc]  # Likewise.
    """MineStudio's; some of what it observes."""

    observation_space: ClassVar = {
        "env_prev_action": spaces.Dict(
            {name: spaces.Discrete(2) for name in BUTTONS} | {"camera": spaces.Box(-180, 180, (2,), np.float32)}
        )
    }


def env_generator(model: str) -> Any:
    """A meadow in which attacks on cows pay, and what the model asks for."""
    observe: dict[str, list[Any]] = {"rocket": [SegmentCallback], "rocket3": [CrossViewCallback, LastActionCallback]}
    return MinecraftSim(
        obs_size=(SIDE, SIDE),
        seed=1,
        callbacks=[
            FastResetCallback(biomes=["plains"], random_tp_range=100),
            RewardsCallback(
                [{"event": "kill_entity", "objects": ["cow"], "reward": 1.0, "identity": "cow", "max_reward_times": 9}]
            ),
            JudgeResetCallback(50),
            *(callback() for callback in observe.get(model, [])),
        ],
    )
