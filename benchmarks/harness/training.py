"""Data and timing shared by both sides of `benchmarks/learner.py`.

Crafter's preset with a GRU and the convolutions of Atari: 32 fragments of 64 steps, micro-batches of 4, 4 epochs, and
the threads that the learner takes. The frames were recorded once (`recording`); the weights are the same.
"""

import json
import os
import time
from collections.abc import Callable

import numpy as np
import torch

from harness.fragments import load
from harness.processes import forget_peak, peak_bytes
from minefleet.config import TrainConfig
from minefleet.config.load import load as load_config
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import Policy, build

NETWORK = ("policy.gru_size=256", "policy.conv_kernels=[8,4,3]", "policy.conv_strides=[4,2,2]")
PRESET = load_config("crafter", NETWORK)
CONFIG: TrainConfig = PRESET.train_config
FRAGMENTS = CONFIG.fragments_per_iteration
STEPS = PRESET.rollout_config.fragment_length
SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(64, 64, 3), dtype="uint8"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(17,)),
)


def make_policy() -> Policy:
    """The preset's policy, the same each time; takes the threads that the learner takes."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    torch.manual_seed(0)
    return build(PRESET.policy, SCHEMA)


def fragments() -> list[Fragment]:
    """The fragments of one iteration."""
    state = {"gru": np.zeros(PRESET.policy.gru_size, np.float32)}
    return [Fragment(**arrays, recurrent_state=state) for arrays in load("crafter", FRAGMENTS)]


def measure(iterate: Callable[[], None], iterations: int) -> None:
    """Prints steps per second of each iteration but the first, and the peak of memory above where they began."""
    before = peak_bytes(os.getpid())
    iterate()
    forget_peak(os.getpid())
    rates = []
    for _ in range(iterations):
        began_s = time.monotonic()
        iterate()
        rates.append(FRAGMENTS * STEPS / (time.monotonic() - began_s))
    print(json.dumps({"steps_per_s": rates, "peak_mb": peak_bytes(os.getpid()) / 1e6, "before_mb": before / 1e6}))
