"""The environments of the actor's benchmarks. Imports NumPy and Gymnasium only, so that peers can play them too."""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from harness.fragments import CACHE

ACTIONS = 17
FRAMES = 1024
"""Distinct frames in the bank."""
BANKS = {"hwc": CACHE / "frames-hwc.npy", "chw": CACHE / "frames-chw.npy"}
"""By layout: Sample Factory's convolutions want channels first."""
SLEEP_S = 0.05
CRASH_AFTER_S = 1.0


class Frames(gymnasium.Env[Any, Any]):
    """Costs nothing: shows the frames of a bank, from a place and for a time that the seed draws."""

    action_space = Discrete(ACTIONS)

    def __init__(self, layout: str = "hwc", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        # A plain array over the mapped file: one copy for all processes.
        self._bank = np.asarray(np.load(BANKS[layout], mmap_mode="r"))
        self.observation_space = Box(0, 255, self._bank.shape[1:], np.uint8)
        self._at = self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._left = (int(number) for number in self.np_random.integers((0, 400), (FRAMES, 600)))
        return self._bank[self._at], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = (self._at + 1) % FRAMES
        self._left -= 1
        return self._bank[self._at], float(action == 3), self._left <= 0, False, {}


class Sleeper(gymnasium.Env[Any, Any]):
    """Takes `SLEEP_S` for a step. One that is reset with a seed of `frozen` never answers, one of `crashing` dies.

    A crashing one finishes episodes of ten steps meanwhile, as an environment does that crashes now and then.
    """

    observation_space = Box(0, 1, (16,), np.float32)
    action_space = Discrete(ACTIONS)

    def __init__(self, frozen: list[int] | None = None, crashing: list[int] | None = None) -> None:
        self._frozen, self._crashing = set(frozen or ()), set(crashing or ())
        self._kind = ""
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._kind = "frozen" if seed in self._frozen else "crashing" if seed in self._crashing else ""
            self._crashes_at_s = time.monotonic() + CRASH_AFTER_S
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while self._kind == "frozen":
            time.sleep(3600)
        if self._kind == "crashing" and time.monotonic() > self._crashes_at_s:
            os._exit(1)
        time.sleep(SLEEP_S)
        self._steps += 1
        return self._look(), 1.0, self._kind == "crashing" and self._steps == 10, self._steps == 1000, {}

    def _look(self) -> Any:
        return self.np_random.random(16, np.float32)


def make_bank() -> None:
    """Makes sure that the banks are there, from the recorded frames of Crafter."""
    from harness.fragments import RECORDING
    from harness.recording import record

    if all(path.exists() for path in BANKS.values()):
        return
    record(FRAMES // 8)
    with np.load(RECORDING) as recording:
        frames = np.concatenate([played[: FRAMES // 8] for played in recording["obs"]])
    distinct = len({frame.tobytes() for frame in frames})
    print(f"{distinct} of {len(frames)} frames are distinct", flush=True)
    for path, bank in zip(BANKS.values(), (frames, frames.transpose(0, 3, 1, 2)), strict=True):
        write(path, np.ascontiguousarray(bank))


def write(path: Path, bank: Any) -> None:
    aside = path.with_suffix(f".{os.getpid()}.npy")
    np.save(aside, bank)
    aside.replace(path)
