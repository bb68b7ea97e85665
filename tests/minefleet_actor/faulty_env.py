"""An environment that does what its action says, bad things included."""

import os
import subprocess
import sys
import threading
from enum import IntEnum
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Act(IntEnum):
    GO_ON = 0
    END = 1
    CUT = 2
    RAISE = 3
    HANG = 4
    EXIT = 5
    NAN_REWARD = 6
    HUGE_REWARD = 7
    WRONG_SHAPE = 8
    WRONG_DTYPE = 9
    WRONG_CATEGORY = 10
    NAN_OBS = 11
    REPORT_ERROR = 12
    BREAK_RESET = 13
    DAWDLE = 14


class Faulty(gymnasium.Env[Any, Any]):
    """`obs["count"]` is the episodes and steps that this very environment has begun."""

    def __init__(self, directory: str, *, has_child: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {
                "count": spaces.Box(0, np.inf, (2,), np.float32),
                "mode": spaces.Discrete(3, start=5),
            }
        )
        self.action_space = spaces.Discrete(len(Act))
        self._directory = Path(directory)
        self._count = np.zeros(2, np.float32)
        self._resets_break = False
        self._has_child = has_child
        if (self._directory / "unmakable").exists():
            raise RuntimeError("this machine is cursed")
        if has_child:
            child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
            (self._directory / "child").write_text(str(child.pid))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if self._resets_break:
            raise ValueError("no way back")
        self._count += (1, -self._count[1])
        return self._obs(), {"task": "begun"}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._count[1] += 1
        act = Act(action)
        self._misbehave(act)
        rewards = {Act.NAN_REWARD: float("nan"), Act.HUGE_REWARD: 1e39}
        infos: dict[Act, dict[str, Any]] = {
            Act.END: {"metrics": {"luck": 0.25}, "task": "ended"},
            Act.REPORT_ERROR: {"error": "the engine died"},
        }
        obs = self._obs() | self._nonsense(act)
        return obs, rewards.get(act, 0.5), act == Act.END, act in (Act.CUT, Act.BREAK_RESET), infos.get(act, {})

    def close(self) -> None:
        if self._has_child:
            threading.Event().wait(0.2)

    def _misbehave(self, act: Act) -> None:
        match act:
            case Act.RAISE:
                raise ZeroDivisionError("the sky falls")
            case Act.HANG:
                threading.Event().wait()
            case Act.EXIT:
                os._exit(7)
            case Act.BREAK_RESET:
                self._resets_break = True
            case Act.DAWDLE:
                threading.Event().wait(0.5)

    def _nonsense(self, act: Act) -> dict[str, Any]:
        match act:
            case Act.WRONG_SHAPE:
                return {"count": np.zeros(3, np.float32)}
            case Act.WRONG_DTYPE:
                return {"mode": 6.0}
            case Act.WRONG_CATEGORY:
                return {"mode": 8}
            case Act.NAN_OBS:
                return {"count": np.array([np.nan, 1.0], np.float32)}
            case _:
                return {}

    def _obs(self) -> dict[str, Any]:
        return {"count": self._count.copy(), "mode": 6}
