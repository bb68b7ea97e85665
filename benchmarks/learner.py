"""The learner: an iteration on data that is ready, against a bare torch loop over the same tensors.

    python benchmarks/learner.py [--rounds 5] [--iterations 4]

    iteration  Crafter with a GRU and Atari's convolutions: 32 fragments of 64 frames, 4 epochs of micro-batches of 4

Each round runs three processes in turn, a different one first each time, with as many threads of torch: ours with all
observations unpacked at once, as by default, ours with `train_config.decode_cache_bytes=0`, which unpacks them in
each epoch anew, a pool of 4 fragments at a time, and the limit. Ours verifies, unpacks and collates the next
iteration meanwhile; the limit has one set of tensors. Steps of an iteration per second, the median of a process's
iterations after a warm-up. Beside it the peak of each process's memory.
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median

from harness.peers import BENCHMARKS
from harness.recording import record
from harness.report import line, medians, table
from harness.training import FRAGMENTS

OURS, STREAMED, LIMIT = "ours", "ours, decode_cache_bytes=0", "limit"
SIDES = {
    OURS: ("harness.training_ours", str(2**30)),
    STREAMED: ("harness.training_ours", "0"),
    LIMIT: ("harness.training_bare",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=4, help="that are timed in each process (default: 4)")
    arguments = parser.parse_args()
    record(FRAGMENTS)
    rounds = [measure(number, arguments.iterations) for number in range(arguments.rounds)]
    print(table("iteration, steps/s", [{side: each[side][0] for side in SIDES} for each in rounds], 0))
    print(table("peak memory, MB", [{side: each[side][1] for side in SIDES} for each in rounds], 0))
    middle = medians([{side: each[side][0] for side in SIDES} for each in rounds])
    print(line("learner", "iteration", "steps/s", middle[OURS], limit=middle[LIMIT]))


def measure(number: int, iterations: int) -> dict[str, tuple[float, float]]:
    """One round: steps per second and peak memory of each side."""
    turn = number % len(SIDES)
    order = list(SIDES)[turn:] + list(SIDES)[:turn]
    return {side: run(side, iterations) for side in order}


def run(side: str, iterations: int) -> tuple[float, float]:
    """Runs one side alone."""
    module, *arguments = SIDES[side]
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", module, str(iterations), *arguments]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    return median(figures["steps_per_s"]), figures["peak_mb"]


if __name__ == "__main__":
    main()
