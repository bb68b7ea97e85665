"""Cases and hyper-parameters of whole training runs. Imports the standard library only: peers read it, too."""

import os
from dataclasses import dataclass

ROLLOUT = 32
"""Steps of a fragment, or of Sample Factory's trajectory."""
BATCH = 512
"""Steps of an optimizer step."""
BATCHES = 4
"""Optimizer steps of an iteration, which trains on each of its steps once."""
LEARNING_RATE, ADAM_EPS, MAX_GRAD_NORM = 1e-4, 1e-6, 4.0
DISCOUNT, GAE_LAMBDA = 0.99, 0.95
CLIP, LARGEST_RATIO = 0.1, 20.0
ENTROPY = 0.003
VALUE = 0.5
"""Weight of the mean squared error of values."""
WINDOW = 100
"""Episodes that a mean return is taken over."""
SAVE_S = 120
"""Time between checkpoints."""
CORES = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task and a network, the same on all sides."""

    env: str = ""
    """`module:Class` of the environment; it takes the layout of its frames, `hwc` or `chw`. Empty: the preset's."""
    preset: str = ""
    """Ours, for its environment."""
    python: str = ""
    """The peer in whose interpreter our environments live, if not in our own; the module then lies in `peers/`."""
    actions: int
    hidden: int
    gru: int = 0
    has_frames: bool = True
    frame: tuple[int, int] = (3, 64)
    """Channels, and pixels of an edge."""
    envs: int = 16
    envs_per_process: int = 16
    """Of ours; 0 for those of the actor's own process."""


CASES = {
    "pixels": Case(env="harness.acting_envs:Frames", actions=17, hidden=512),
    "pixels-gru": Case(env="harness.acting_envs:Frames", actions=17, hidden=512, gru=512),
    "vizdoom": Case(env="vizdoom_basic:Basic", python="vizdoom", actions=4, hidden=512, envs_per_process=8),
    "atari": Case(preset="atari", python="envpool", actions=6, hidden=512, frame=(4, 84), envs_per_process=8),
    "vector": Case(env="harness.whole_envs:Pole", actions=2, hidden=64, has_frames=False, envs_per_process=0),
    "slow": Case(env="harness.whole_envs:SlowFrames", actions=17, hidden=512, envs=64, envs_per_process=1),
}


def share_cores(count: int = CORES) -> list[int]:
    """Ties this process and its children to as many cores as every side gets; returns them."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)
    return cores
