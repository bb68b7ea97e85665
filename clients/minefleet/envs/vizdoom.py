"""VizDoom (Kempka et al. 2016, https://arxiv.org/abs/1605.02097): scenarios with rewards that can be learned from."""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np

_ID = "vizdoom.gymnasium_wrapper:VizdoomHealthGatheringSupreme-v1"


class HealthGathering(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Health Gathering Supreme: walks a maze whose floor is acid, and lives on medkits among vials of poison.

    obs     [120, 160, 3] uint8, the screen, without the health
    action  Discrete(4): nothing, forward, right, left
    reward  1 for a step in which the health rises, 0.01 for each tick that it lives

    A step is four ticks; an episode ends with death, or after 2,100 ticks. The latter is an end, too: there is nothing
    to see after it, so that no value could stand for what might have come. These are the rewards of Sample Factory's
    example, https://www.samplefactory.dev/09-environment-integrations/vizdoom/.
    """

    TICKS = 4

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(
            gymnasium.make(
                _ID,
                frame_skip=self.TICKS,
                living_reward=0.01,
                death_penalty=0,
                screen_resolution="RES_160X120",
                treat_episode_timeout_as_truncation=False,
                render_mode=render_mode,
                disable_env_checker=True,
            )
        )
        spaces = self.env.observation_space
        assert isinstance(spaces, gymnasium.spaces.Dict)
        self.observation_space = spaces["screen"]
        self._health = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, at a place of its own."""
        seen, info = self.env.reset(seed=seed, options=options)
        self._health = float(seen["gamevariables"][0])
        return seen["screen"], info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Presses a button for four ticks."""
        seen, reward, terminated, truncated, info = self.env.step(np.int64(action))
        before, self._health = self._health, float(seen["gamevariables"][0])
        return seen["screen"], float(reward) + (self._health > before), terminated, truncated, info
