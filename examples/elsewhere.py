"""A world that dials in: here stand its spaces only, and `examples/world.js` is the world.

`minefleet train examples/elsewhere.py services.actor.address=127.0.0.1:7003`
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from minefleet.envs.elsewhere import Elsewhere


def env_generator() -> Elsewhere:
    """The spaces of a corridor: the place from 0 to 1, and to go left or right."""
    return Elsewhere(Box(0.0, 1.0, (1,), np.float32), Discrete(2))


online_dict = {
    "rollout_config": {"num_rollout_workers": 1, "worker_config": {"hosted": True, "num_envs": 4}},
    "stop": {"env_steps": 20_000},
}
