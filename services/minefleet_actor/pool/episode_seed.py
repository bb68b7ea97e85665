"""The seed of an environment, which follows from the run's."""

import numpy as np


def episode_seed(seed: int, actor_index: int, slot: int, episode: int) -> int:
    """The seed of an environment whose first episode is the slot's `episode`, counted from 0; in [0, 2³¹)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(actor_index, slot, episode))
    return int(sequence.generate_state(1)[0] >> 1)
