"""The fragments that benchmarks of replay move, as plain arrays, the same for every side.

Imports NumPy only, so that peers can read them in their own environments. A fragment is a dict of arrays, named as in
`minefleet.core.fragment.Fragment`. Its actions tell it apart: no two fragments have the same.

crafter  64 x (64, 64, 3): windows of 64 consecutive recorded frames, one every 16 frames, so neighbours overlap
random   256 x (128, 128, 3): drawn from a seed, no two alike, and nothing to compress
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

CACHE = Path(__file__).parents[1] / ".cache"
RECORDING = CACHE / "crafter.npz"
"""Of E environments and S steps: obs [E, S + 1, 64, 64, 3] uint8, action [E, S] int64, reward [E, S] float32,
terminated [E, S] bool. `obs[e, s + 1]` is what came after step s, of the next episode where step s terminated."""

KINDS = ("crafter", "random")
CRAFTER_STEPS = 64
STRIDE = 16
RANDOM_STEPS = 256
RANDOM_FRAME = (128, 128, 3)


def load(kind: str, count: int) -> list[Arrays]:
    """Returns `count` distinct fragments of a kind.

    Raises:
        ValueError: If there are not so many.
    """
    source = windows() if kind == "crafter" else draws()
    fragments = list(islice(source, count))
    distinct = len({name_of(fragment) for fragment in fragments})
    if distinct < count:
        raise ValueError(f"wanted {count} distinct fragments, there are {distinct}")
    return fragments


def name_of(fragment: Arrays) -> bytes:
    """Identifies a fragment."""
    return fragment["action"].tobytes()


def total_bytes(fragments: list[Arrays]) -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for fragment in fragments for array in fragment.values())


def window_count(terminated: NDArray[np.bool_]) -> int:
    """The number of windows of a recording with these ends."""
    starts = range(0, terminated.shape[1] - CRAFTER_STEPS + 1, STRIDE)
    return sum(int((~terminated[:, start + CRAFTER_STEPS - 1]).sum()) for start in starts)


def windows() -> Iterator[Arrays]:
    """Cuts the recording. Windows that end with their episode are left out: all others have one `cut_obs`."""
    rng = np.random.default_rng(0)
    with np.load(RECORDING) as recording:
        obs, actions, rewards, ends = (recording[name] for name in ("obs", "action", "reward", "terminated"))
    firsts = np.roll(ends, 1, axis=1)
    firsts[:, 0] = True
    for start in range(0, ends.shape[1] - CRAFTER_STEPS + 1, STRIDE):
        steps = slice(start, start + CRAFTER_STEPS)
        for env in np.flatnonzero(~ends[:, steps.stop - 1]):
            fragment = fragment_of(obs[env, steps], obs[env, steps.stop], actions[env, steps], rng)
            yield fragment | {
                "reward": rewards[env, steps],
                "terminated": ends[env, steps],
                "first": firsts[env, steps],
            }


def draws() -> Iterator[Arrays]:
    """Draws fragments, one after the other."""
    rng = np.random.default_rng(0)
    while True:
        frames = rng.integers(0, 256, (RANDOM_STEPS + 1, *RANDOM_FRAME), np.uint8)
        yield fragment_of(frames[:-1], frames[-1], rng.integers(0, 17, RANDOM_STEPS), rng)


def fragment_of(
    obs: NDArray[np.uint8], next_obs: NDArray[np.uint8], action: NDArray[np.int64], rng: np.random.Generator
) -> Arrays:
    """A fragment in which no episode ends, with estimates as an untrained policy might make them."""
    steps = len(obs)
    values = rng.normal(size=steps + 1).astype(np.float32)
    return {
        "obs": obs,
        "action": action,
        "reward": np.zeros(steps, np.float32),
        "terminated": np.zeros(steps, np.bool_),
        "truncated": np.zeros(steps, np.bool_),
        "first": np.zeros(steps, np.bool_),
        "crash": np.zeros(steps, np.bool_),
        "behaviour_logp": np.full(steps, -np.log(17), np.float32),
        "behaviour_value": values[:-1],
        "next_value": values[1:],
        "policy_version": np.ones(steps, np.uint32),
        "cut_index": np.array([steps - 1], np.int32),
        "cut_obs": next_obs[None],
    }
