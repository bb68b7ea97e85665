"""Batches of environments, in every mode of resets."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from minefleet_env.function_loader import load


class Wander(gymnasium.Env[Any, Any]):
    """Ends where it leaves a square, and is cut after a number of steps that each episode draws."""

    observation_space = spaces.Dict(
        {"at": spaces.Box(-9, 9, (2,), np.float32), "parts": spaces.Tuple((spaces.Discrete(30, start=5),))}
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(4, start=1), "speed": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self._limit = int(self.np_random.integers(2, 12))
        self._steps = 0
        return self._shown(), {"task": f"limit-{self._limit}"}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._at = self._at + action["speed"] * int(action["turn"]) / 4
        is_out, is_late = bool(np.abs(self._at).max() > 2), self._steps >= self._limit
        info = {"metrics": {"steps": float(self._steps)}} if is_out or is_late else {}
        return self._shown(), float(self._at.sum()), is_out, is_late, info

    def _shown(self) -> dict[str, Any]:
        return {"at": np.clip(self._at, -9, 9), "parts": (self._steps + 5,)}


def wander(num_envs: int, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv([Wander] * num_envs, autoreset_mode=AutoresetMode[mode])


def faulty(num_envs: int, directory: str, mode: str) -> SyncVectorEnv:
    make = load(f"{Path(__file__).with_name('faulty_env.py')}:Faulty")
    return SyncVectorEnv([lambda: make(directory)] * num_envs, autoreset_mode=AutoresetMode[mode])


class Silent(SyncVectorEnv):
    """Does not say how it resets."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Wander] * num_envs)
        self.metadata = {}


def one_too_many(num_envs: int) -> SyncVectorEnv:
    return wander(num_envs + 1, "NEXT_STEP")


def single(num_envs: int) -> Wander:
    return Wander()


def numberless() -> SyncVectorEnv:
    return wander(2, "NEXT_STEP")


class Diary(SyncVectorEnv):
    """Is seeded where it is made, which it writes down, and nowhere else."""

    def __init__(self, num_envs: int, seed: int, directory: str) -> None:
        make = load(f"{Path(__file__).with_name('faulty_env.py')}:Faulty")
        super().__init__([lambda: make(directory)] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        with Path(directory, "made").open("a") as diary:
            diary.write(f"{seed}\n")

    def reset(self, *, options: Any = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return super().reset(options=options)


class Common(SyncVectorEnv):
    """Says the same of all rows, once."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Wander] * num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {"task": "dig"}


class OneSeed(SyncVectorEnv):
    """Is seeded where it is made, as EnvPool is."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__([Wander] * num_envs)
        self._made_with = seed

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is None
        return super().reset(seed=self._made_with, options=options)
