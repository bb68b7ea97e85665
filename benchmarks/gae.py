"""Advantages of an iteration's fragments: ours against a NumPy loop over fragments and steps.

python benchmarks/gae.py [--rounds 7]

Both take the same 1024 fragments of 256 steps, 16 of each stream, whose episodes end once in 100 steps. Ours is what
the learner calls, chaining included. The loop is that of learners that estimate each fragment on its own, one step
after the other; the result of ours without chains is compared with it. Both on one thread.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.report import Round, line, medians, table
from minefleet_learner.algorithms.fragment_chain_advantages import chain

FRAGMENTS, STEPS, PER_STREAM = 1024, 256, 16
DISCOUNT, LAMBDA = 0.99, 0.95
CASE = f"{FRAGMENTS}x{STEPS}"


@dataclass(frozen=True)
class Data:
    """[FRAGMENTS, STEPS] each."""

    reward: NDArray[np.float32]
    value: NDArray[np.float32]
    next_value: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    data = random_data()
    apart = [(f"s{index}", 0) for index in range(FRAGMENTS)]
    np.testing.assert_allclose(ours(data, apart).numpy(), numpy_loop(data), rtol=1e-4, atol=1e-4)
    streams = [(f"s{index // PER_STREAM}", index % PER_STREAM) for index in range(FRAGMENTS)]
    results = [measure(data, streams) for _ in range(rounds)]
    print(table(f"GAE of {CASE}, Msteps/s", results, digits=2))
    middle = medians(results)
    print(line("gae", CASE, "Msteps/s", middle["ours"], peer=middle["NumPy loop"]))


def random_data() -> Data:
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, FRAGMENTS, STEPS)).astype(np.float32)
    ends = rng.random((2, FRAGMENTS, STEPS)) < 0.005
    return Data(reward, value, next_value, ends[0], ends[1])


def measure(data: Data, names: list[tuple[str, int]]) -> Round:
    return {
        "ours": rate(lambda: ours(data, names)),
        "ours, nothing to chain": rate(lambda: ours(data, [(stream, 2 * number) for stream, number in names])),
        "NumPy loop": rate(lambda: numpy_loop(data)),
    }


def rate(estimate: Callable[[], Any]) -> float:
    """Millions of steps per second."""
    start = time.perf_counter()
    estimate()
    return FRAGMENTS * STEPS / (time.perf_counter() - start) / 1e6


def ours(data: Data, names: list[tuple[str, int]]) -> torch.Tensor:
    tensors = {name: torch.from_numpy(getattr(data, name)) for name in Data.__dataclass_fields__}
    mask = torch.ones(FRAGMENTS, STEPS, dtype=torch.bool)
    return chain(names, **tensors, mask=mask, discount=DISCOUNT, gae_lambda=LAMBDA)


def numpy_loop(data: Data) -> NDArray[np.float32]:
    advantage = np.zeros_like(data.reward)
    for row in range(FRAGMENTS):
        carry = 0.0
        for step in reversed(range(STEPS)):
            future = DISCOUNT * data.next_value[row, step] * (1 - data.terminated[row, step])
            delta = data.reward[row, step] + future - data.value[row, step]
            goes_on = 1 - (data.terminated[row, step] or data.truncated[row, step])
            carry = delta + DISCOUNT * LAMBDA * goes_on * carry
            advantage[row, step] = carry
    return advantage


if __name__ == "__main__":
    main()
