"""An environment that does what its action says, bad things included."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
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
    SEGFAULT = 15
    ABORT = 16
    FREEZE = 17
    GARBAGE = 18
    CLOSE_CHANNEL = 19
    FLOOD = 20
    ESCAPE = 21
    LEAK = 22
    LEAK_BELOW = 23
    SYS_EXIT = 24


LIMIT_BYTES = 150_000_000
"""Memory that an environment of the tests may take; `LEAK` takes a little more, `LEAK_BELOW` much more, in a child."""
LEAKER = f"x = bytearray(b'1') * {LIMIT_BYTES * 3 // 2}; import threading; threading.Event().wait()"
CHILD = "import threading; threading.Event().wait()"
FORKER = f"import os; [os.fork() for _ in range(5)]; os.setsid(); {CHILD}"


class Faulty(gymnasium.Env[Any, Any]):
    """`obs["count"]` is the episodes and steps that this very environment has begun."""

    def __init__(self, directory: str, *, has_child: bool = False, keeps_diary: bool = False) -> None:
        self._keeps_diary = keeps_diary
        self.observation_space = spaces.Dict(
            {"count": spaces.Box(0, np.inf, (2,), np.float32), "mode": spaces.Discrete(3, start=5)}
        )
        self.action_space = spaces.Discrete(len(Act))
        self._directory = Path(directory)
        self._count = np.zeros(2, np.float32)
        self._resets_break = False
        self._leaked = bytearray()
        self._has_child = has_child
        if (self._directory / "unmakable").exists():
            raise RuntimeError("this machine is cursed")
        self._take_time("make")
        if has_child:
            child = subprocess.Popen([sys.executable, "-c", CHILD])
            (self._directory / "child").write_text(str(child.pid))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._take_time("reset")
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

    def _take_time(self, what: str) -> None:
        """Writes down when something began and ended that takes a while."""
        if self._keeps_diary:
            with (self._directory / "diary").open("a", buffering=1) as diary:
                diary.write(f"begin {what} {os.getpid()} {time.monotonic()}\n")
                threading.Event().wait(0.05)
                diary.write(f"end {what} {os.getpid()} {time.monotonic()}\n")

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
            case Act.SYS_EXIT:
                sys.exit("the engine is gone")
            case Act.BREAK_RESET:
                self._resets_break = True
            case Act.DAWDLE:
                threading.Event().wait(0.5)
            case Act.ESCAPE:
                subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
                subprocess.Popen([sys.executable, "-c", FORKER], start_new_session=True)
            case Act.LEAK:
                while resident_bytes() < 1.1 * LIMIT_BYTES:
                    self._leaked += b"1" * 1_000_000
            case Act.LEAK_BELOW:
                subprocess.Popen([sys.executable, "-c", LEAKER], start_new_session=True)
            case Act.FLOOD:
                os.write(1, b"noise\n" * 20_000)
            case _:
                self._break_process(act)

    def _break_process(self, act: Act) -> None:
        match act:
            case Act.SEGFAULT:
                ctypes.string_at(0)
            case Act.ABORT:
                os.abort()
            case Act.FREEZE:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Act.GARBAGE:
                os.write(channel(), b"\xff\x00 this is no reply")
                threading.Event().wait()
            case Act.CLOSE_CHANNEL:
                socket.socket(fileno=channel()).shutdown(socket.SHUT_RDWR)
                threading.Event().wait()

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


def channel() -> int:
    """The descriptor through which this process speaks to its pool."""
    links = {int(path.name): str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    return max(number for number, target in links.items() if target.startswith("socket:"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
