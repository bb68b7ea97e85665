"""Crafter as hard to live with as a heavy game, to see what `minefleet watch` shows of it.

An environment raises, dies or hangs about once in five hundred steps, and a quarter of them are eight times as slow:
`minefleet train examples/flaky_crafter.py`, and `minefleet watch` beside it.
"""

import os
import time

from minefleet.envs.crafter import Crafter

FAST_S, SLOW_S = 0.02, 0.16
STEP_TIMEOUT_S = 4.0


class FlakyCrafter(Crafter):
    """The task names the speed, so that the page, the terminal and `metrics.jsonl` tell both apart."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        if seed is not None:
            self.is_slow = seed % 4 == 0
        return obs, info | {"task": "slow" if self.is_slow else "fast"}

    def step(self, action):
        time.sleep(SLOW_S if self.is_slow else FAST_S)
        draw = self.np_random.random()
        if draw < 1e-3:
            raise RuntimeError("the renderer lost its context")
        if draw < 1.5e-3:
            os._exit(139)
        if draw < 1.8e-3:
            time.sleep(2 * STEP_TIMEOUT_S)
        return super().step(action)


def env_generator():
    return FlakyCrafter(length=300)


online_dict = {
    "preset": "crafter",
    "eval_interval": 10,
    "policy": {"hidden_size": 128, "gru_size": 128},
    "rollout_config": {
        "fragment_length": 32,
        "worker_config": {"num_envs": 12, "envs_per_process": 1, "step_timeout_s": STEP_TIMEOUT_S},
    },
    "train_config": {
        "batches_per_iteration": 2,
        "context_length": 32,
        "epochs_per_iteration": 2,
        "record_video_interval": 5,
        "save_interval": 5,
    },
    "stop": {"env_steps": 100_000},
}
