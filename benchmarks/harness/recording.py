"""Records Crafter frames, played by a random policy, for `fragments`."""

import os
import time

import numpy as np
from numpy.typing import NDArray

from harness.fragments import CRAFTER_STEPS, RECORDING, STRIDE, Arrays, window_count
from minefleet.envs.crafter import Crafter

ENVIRONMENTS = 8
SPARE = 1.05
"""Windows recorded per window wanted: those that end with their episode are not used."""


def record(windows: int) -> None:
    """Makes sure that the recording has so many windows; makes a new one where it has fewer."""
    if RECORDING.exists():
        with np.load(RECORDING) as recording:
            if window_count(recording["terminated"]) >= windows:
                return
    began = time.monotonic()
    steps = CRAFTER_STEPS + STRIDE * int(np.ceil(windows * SPARE / ENVIRONMENTS))
    print(f"recording {ENVIRONMENTS} environments of Crafter for {steps} steps each, once", flush=True)
    played = [play(seed, steps) for seed in range(ENVIRONMENTS)]
    RECORDING.parent.mkdir(exist_ok=True)
    aside = RECORDING.with_suffix(f".{os.getpid()}.npz")
    obs, action, reward, terminated = (np.stack([one[name] for one in played]) for name in played[0])
    np.savez(aside, obs=obs, action=action, reward=reward, terminated=terminated)
    aside.replace(RECORDING)
    print(f"recorded in {time.monotonic() - began:.0f} s", flush=True)


def play(seed: int, steps: int) -> Arrays:
    """Plays one environment; see `RECORDING`."""
    env, rng = Crafter(length=steps + 1), np.random.default_rng(seed)
    frames: list[NDArray[np.uint8]] = [env.reset(seed=seed)[0]]
    actions = rng.integers(0, 17, steps)
    rewards, ends = np.zeros(steps, np.float32), np.zeros(steps, np.bool_)
    for step, action in enumerate(actions):
        frame, rewards[step], ends[step], _, _ = env.step(action)
        frames.append(env.reset()[0] if ends[step] else frame)
    env.close()
    return {"obs": np.stack(frames), "action": actions, "reward": rewards, "terminated": ends}
