"""The spaces of worlds that run elsewhere and dial in."""

from typing import Any, NoReturn

import gymnasium


class Elsewhere(gymnasium.Env[Any, Any]):
    """Stands for a world of which this machine knows the spaces only; for `rollout_config.worker_config.hosted`.

    Args:
        observation_space: A space of Gymnasium.
        action_space: A space of Gymnasium.
    """

    is_elsewhere = True

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, **_: Any) -> NoReturn:
        """Refuses: nothing can be played here."""
        raise RuntimeError("this world runs elsewhere and has to dial in: set rollout_config.worker_config.hosted=true")

    def step(self, _: Any) -> NoReturn:
        """Refuses, too."""
        self.reset()
