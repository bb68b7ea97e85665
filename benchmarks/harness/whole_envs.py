"""Environments of whole training that other benchmarks do not have. Peers play them, too, in their interpreters."""

import time
from typing import Any

import gymnasium

from harness.acting_envs import SLEEP_S, Frames


class SlowFrames(Frames):
    """Frames that take `SLEEP_S` a step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(SLEEP_S)
        return super().step(action)


class Pole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole, whatever the layout."""

    def __init__(self, layout: str = "hwc", render_mode: str | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))
