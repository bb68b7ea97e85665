"""MineStudio's simulator as an environment of Gymnasium, whatever its callbacks do.

    action {"buttons", "camera"} ─▶ Simulator ─▶ MinecraftSim ─▶ callbacks, engine
    what is declared, two ends, plain info ◀─ Simulator ◀─ MinecraftSim ◀┘

Known by the name of its class, so that MineStudio is imported by the process that makes one, and not here.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.minecraft.actions import NUM_BUTTONS, NUM_CAMERA, one
from minefleet_env.minecraft.engine_start_error import ended_at_start

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

IMAGE, SPACE = "image", "observation_space"
KEPT_INFO_KEYS = ("metrics", "task")
"""Keys of `info` that callbacks may set for the fleet. The rest is the engine's and outlives its step."""
AGENT = (("buttons", NUM_BUTTONS), ("camera", NUM_CAMERA))
"""The action of an agent, and its categories."""
TIME_LIMIT = "JudgeResetCallback"
"""Ends episodes after `time_limit` steps."""


class Simulator(gymnasium.Env[Any, Any]):
    """A `MinecraftSim`.

    The observation is {"image": uint8 [size, size, 3]}, and what else the simulator's `observation_space` or that of a
    callback declares. The action is {"buttons", "camera"} of categories, or MineStudio's own dict where the simulator
    was made with `action_type="env"`.

    Seeds: the world is the one that the simulator was made with (`seed=`). A seed at reset is for the random numbers
    from which callbacks draw places, biomes and tasks: Python's and NumPy's in this process, and `sim.np_random`.
    """

    def __init__(self, sim: Any) -> None:
        shape = sim.observation_space[IMAGE].shape
        if shape[0] != shape[1]:
            raise RefusedError(
                f"MineStudio takes obs_size for (width, height) and says (height, width): only squares are safe, "
                f"got {tuple(sim.obs_size)}"
            )
        self._sim = sim
        self._is_agent = sim.action_type == "agent"
        self._limits = [each.time_limit for each in sim.callbacks if _is_a(each, TIME_LIMIT)]
        self._steps = 0
        declared = [sim.observation_space, *(getattr(each, SPACE) for each in sim.callbacks if hasattr(each, SPACE))]
        shown = {str(key): space for spaces_of in declared for key, space in spaces_of.items()}
        self._space = self.observation_space = spaces.Dict({**shown, IMAGE: spaces.Box(0, 255, shape, np.uint8)})
        self._undeclared: set[str] = set()
        self.action_space = sim.action_space
        if self._is_agent:
            choices = [(str(name), spaces.Discrete(int(part.nvec[0]))) for name, part in sim.action_space.items()]
            self.action_space = spaces.Dict(choices)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Raises:
            EnvError: If the engine ends at its start; has the end of its log.
        """
        del options
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            self._sim.np_random = seeding.np_random(seed)[0]
        try:
            obs, info = self._sim.reset()
        except EOFError as error:
            raise ended_at_start(error) from error
        self._steps = 0
        return self._shown(obs), _plain(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step.

        Raises:
            EnvError: If the engine has failed; MineStudio then returns an observation that it has made up.
            ValueError: If a category is out of range; MineStudio takes -1 for the inventory.
        """
        given = (
            {name: np.array([one(name, action[name], count)]) for name, count in AGENT} if self._is_agent else action
        )
        obs, reward, terminated, truncated, info = self._sim.step(dict(given))
        self._steps += 1
        plain = _plain(info)
        ends = self._ends(bool(terminated), bool(truncated), info)
        return self._shown(obs), float(reward), *ends, plain

    def render(self) -> Any:
        """The last image that was shown."""
        return self._image

    def close(self) -> None:
        """Closes the simulator."""
        self._sim.close()

    def _shown(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        self._image = obs[IMAGE]
        unseen = obs.keys() - self._space.spaces.keys() - self._undeclared
        if unseen:
            self._undeclared |= unseen
            logger.warning(
                "the policy does not see %s, which callbacks observe and no observation_space declares",
                ", ".join(sorted(map(str, unseen))),
            )
        return {key: obs[key] for key in self._space.spaces if key in obs}

    def _ends(self, terminated: bool, truncated: bool, info: Mapping[str, Any]) -> tuple[bool, bool]:
        """Distinguishes a time limit from a termination.

        `JudgeResetCallback` terminates at its limit. The engine's own end sets both: that is a death, or a limit.
        """
        is_dead = float(np.max(info.get("health", 1.0))) <= 0
        if terminated and truncated:
            return is_dead, not is_dead
        is_limit = terminated and self._steps in self._limits and not is_dead
        return terminated and not is_limit, truncated or is_limit


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    if info.get("error"):
        raise EnvError(f"the engine has failed: {info['error']}", "error")
    return {key: info[key] for key in KEPT_INFO_KEYS if key in info}


def _is_a(value: Any, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(value).__mro__)
