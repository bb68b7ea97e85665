"""Faulty: fails in every way that environments do, by chance and by seed, and draws into each observation what it is.

So one can see what a fleet's settings do about failures, and prove from stored steps alone that none came from one:
every observation carries a `Mark`, every reward and every end follows from it, and whatever an environment shows after
a fault of its own is poisoned, like the random observation that MineRL returns when its engine has died.
"""

import ctypes
import os
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

STEP_FAULTS = {
    "exception": "the step raises",
    "error": "it says `info['error']`",
    "exit": "its process exits",
    "segfault": "its process dies of a segmentation fault",
    "hang": "the step never returns",
    "wrong_shape": "an observation has another shape than it must",
    "wrong_dtype": "an observation has another dtype than it must",
    "nan_obs": "an observation is NaN",
    "nan_reward": "the reward is NaN",
}
RESET_FAULTS = {"reset_exception": "the reset raises", "reset_hang": "the reset never returns"}
LIFE_FAULTS = {
    "leak": "it takes `leak_bytes` more memory with every step",
    "slow_start": "making it takes `start_s`",
    "start_exception": "making it raises",
}
FAULTS = STEP_FAULTS | RESET_FAULTS | LIFE_FAULTS
"""Failures: at each step, at each reset, or once in the life of an environment."""

ACTIONS = 4
NO_ACTION = -1
_FIELDS = struct.Struct("<IIIi")
_CHECKSUM = struct.Struct("<I")
MARK_BYTES = _FIELDS.size + _CHECKSUM.size
_POISON = 0xFFFFFFFF

Obs = dict[str, NDArray[Any]]


class Mark(NamedTuple):
    """Identifies an observation."""

    life: int
    """The seed of the environment's first reset: another one for each that was made."""
    episode: int
    """Number of the episode in that life, from 0."""
    step: int
    """Steps of the episode before the observation."""
    action: int
    """The one that led to it; `NO_ACTION` after a reset."""

    def pack(self, *, poisoned: bool = False) -> bytes:
        """The mark and its checksum, a wrong one where it is poisoned."""
        data = _FIELDS.pack(*self)
        return data + _CHECKSUM.pack(crc32(data) ^ (_POISON if poisoned else 0))


def read_mark(frame: NDArray[np.uint8]) -> Mark | None:
    """Reads the mark of one observation's `frame`, or of anything; None where there is no good one."""
    data = frame.tobytes()[:MARK_BYTES]
    if len(data) < MARK_BYTES or crc32(data[: _FIELDS.size]) != _CHECKSUM.unpack_from(data, _FIELDS.size)[0]:
        return None
    return Mark(*_FIELDS.unpack_from(data))


def reward_of(mark: Mark) -> float:
    """The reward that comes with the observation of this mark: a float32 in [0, 1) of its own."""
    return float(np.float32(crc32(_FIELDS.pack(*mark)) >> 8) / np.float32(2**24))


def ending_of(life: int, episode: int, mean: int) -> tuple[int, bool]:
    """The number of steps of an episode, 1 to 2 · mean - 1, and whether it terminates or meets a time limit."""
    number = crc32(struct.pack("<II", life, episode))
    return 1 + (number >> 1) % (2 * mean - 1), bool(number & 1)


class Faulty(gymnasium.Env[Any, Any]):
    """Episodes of about `episode_length` steps that take `step_s` each, unless a fault comes first.

    obs     frame [*shape] uint8, which begins with the mark; pulse [1] float32, which is what turns into nonsense
    action  0 to 3, without effect but on the next mark
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's interface.

    def __init__(
        self,
        *,
        faults: Mapping[str, float] | None = None,
        shape: tuple[int, ...] = (64, 64, 3),
        episode_length: int = 50,
        step_s: float = 0.0,
        start_s: float = 10.0,
        leak_bytes: int = 2**20,
        armed_by: str = "",
    ) -> None:
        """Takes the time that making it takes, and may fail.

        Args:
            faults: Probability of each of `FAULTS`; none happen that are not named.
            shape: Of the frame, which must have room for a mark.
            episode_length: Steps of an episode, on average.
            step_s: Time that a step takes, seconds.
            start_s: Time that a slow start takes, seconds.
            leak_bytes: What a leak takes with every step.
            armed_by: Where given, starts fail or are slow only while this file exists: a run ends when its first
                start fails.
        """
        self._faults = dict(faults or {})
        _check(self._faults, shape, episode_length)
        self.observation_space = spaces.Dict(
            {"frame": spaces.Box(0, 255, tuple(shape), np.uint8), "pulse": spaces.Box(-1, 1, (1,), np.float32)}
        )
        self.action_space = spaces.Discrete(ACTIONS)
        self._shape = tuple(shape)
        self._mean_length = episode_length
        self._step_s = step_s
        self._leak_bytes = leak_bytes
        self._leaked: list[bytes] = []
        self._leaks = False
        self._life: int | None = None
        self._mark = Mark(0, 0, 0, NO_ACTION)
        self._ending = (0, False)
        self._broken = False
        if not armed_by or Path(armed_by).exists():
            self._begin(start_s)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Starts the next episode; with a seed, the first one of a new life."""
        super().reset(seed=seed, options=options)
        if self._life is None or seed is not None:
            self._life = int(self.np_random.integers(2**31)) if seed is None else seed
            self._mark = Mark(self._life, -1, 0, NO_ACTION)
            self._leaks = self._happens("leak")
        self._mark = Mark(self._life, self._mark.episode + 1, 0, NO_ACTION)
        self._ending = ending_of(self._life, self._mark.episode, self._mean_length)
        for fault in RESET_FAULTS:
            if self._happens(fault):
                self._suffer(fault)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Goes on by one step, or fails."""
        time.sleep(self._step_s)
        self._mark = self._mark._replace(step=self._mark.step + 1, action=int(action))
        if self._leaks:
            self._leaked.append(b"\1" * self._leak_bytes)
        fault = self._drawn()
        self._suffer(fault)
        steps, is_terminal = self._ending
        is_over = self._mark.step >= steps
        reward = float("nan") if fault == "nan_reward" else reward_of(self._mark)
        info = {"error": "the engine is gone"} if fault == "error" else {}
        return self._obs() | _nonsense(fault), reward, is_over and is_terminal, is_over and not is_terminal, info

    def _begin(self, start_s: float) -> None:
        """Starts slowly or not at all, by chance alone: an environment that is being made has no seed yet."""
        luck = np.random.default_rng().random(2)
        if luck[0] < self._faults.get("slow_start", 0.0):
            time.sleep(start_s)
        if luck[1] < self._faults.get("start_exception", 0.0):
            raise RuntimeError("the environment cannot be made")

    def _happens(self, fault: str) -> bool:
        return fault in self._faults and bool(self.np_random.random() < self._faults[fault])

    def _drawn(self) -> str:
        """The fault of this step; empty for none."""
        chance = self.np_random.random()
        for fault in STEP_FAULTS:
            chance -= self._faults.get(fault, 0.0)
            if chance < 0:
                return fault
        return ""

    def _suffer(self, fault: str) -> None:
        """Breaks; whatever is shown from here on is poisoned."""
        self._broken = self._broken or bool(fault)
        match fault:
            case "exception" | "reset_exception":
                raise RuntimeError(f"a fault, as requested: {FAULTS[fault]}")
            case "hang" | "reset_hang":
                threading.Event().wait()
            case "exit":
                os._exit(1)
            case "segfault":
                ctypes.string_at(0)

    def _obs(self) -> Obs:
        frame = np.full(self._shape, self._mark.step % 256, np.uint8)
        frame.reshape(-1)[:MARK_BYTES] = np.frombuffer(self._mark.pack(poisoned=self._broken), np.uint8)
        return {"frame": frame, "pulse": np.array([self._mark.step % 2], np.float32)}


def _nonsense(fault: str) -> Obs:
    """Garbage in the place of a good pulse."""
    match fault:
        case "wrong_shape":
            return {"pulse": np.zeros(2, np.float32)}
        case "wrong_dtype":
            return {"pulse": np.zeros(1, np.complex64)}
        case "nan_obs":
            return {"pulse": np.full(1, np.nan, np.float32)}
        case _:
            return {}


def _check(faults: Mapping[str, float], shape: tuple[int, ...], episode_length: int) -> None:
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"faults must be among {', '.join(FAULTS)}, got {', '.join(unknown)}")
    for fault, probability in faults.items():
        if not 0 <= probability <= 1:
            raise ValueError(f"the probability of {fault} must lie in [0, 1], got {probability}")
    if sum(faults.get(fault, 0.0) for fault in STEP_FAULTS) > 1:
        raise ValueError(f"at most one fault happens in a step: their probabilities add up to more than 1 in {faults}")
    if np.prod(shape) < MARK_BYTES:
        raise ValueError(f"a frame must have at least {MARK_BYTES} bytes, got shape {tuple(shape)}")
    if episode_length < 1:
        raise ValueError(f"episode_length must be >= 1, got {episode_length}")
