"""VizDoom's `basic` for `benchmarks/training.py`. Ours plays it in `.venv-vizdoom`, Sample Factory in its own."""

from typing import Any

import cv2
import gymnasium
import numpy as np
import vizdoom
from gymnasium.spaces import Box, Discrete


class Basic(gymnasium.Env[Any, Any]):
    """A step is four ticks, a frame is 64 x 64 x 3, a reward a hundredth of the game's."""

    TICKS, SIDE = 4, 64
    ACTIONS = ([0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1])

    def __init__(self, layout: str = "hwc", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._resize = lambda frame: cv2.resize(frame, (self.SIDE, self.SIDE), interpolation=cv2.INTER_AREA)
        self._axes = (0, 1, 2) if layout == "hwc" else (2, 0, 1)
        shape = tuple((self.SIDE, self.SIDE, 3)[axis] for axis in self._axes)
        self.observation_space, self.action_space = Box(0, 255, shape, np.uint8), Discrete(len(self.ACTIONS))
        self._game = vizdoom.DoomGame()
        self._game.load_config(f"{vizdoom.scenarios_path}/basic.cfg")
        self._game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self._game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        self._game.set_window_visible(False)
        self._game.init()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.set_seed(int(self.np_random.integers(2**31)))
        self._game.new_episode()
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._game.make_action(self.ACTIONS[int(action)], self.TICKS) / 100
        return self._look(), reward, self._game.is_episode_finished(), False, {}

    def close(self) -> None:
        self._game.close()

    def _look(self) -> Any:
        state = self._game.get_state()
        if state is None:  # The episode is over: there is nothing to see.
            return np.zeros(self.observation_space.shape, np.uint8)
        return np.ascontiguousarray(self._resize(state.screen_buffer).transpose(self._axes))
