"""Whole training with 64 environments of 50 ms: how close to the rate at which no environment ever waits.

    python benchmarks/slow_training.py [--rounds 3] [--seconds 30] [--set KEY=VALUE ...]

The frames, network and hyper-parameters of `pixels` in `benchmarks/training.py`; each environment is a process that
sleeps 50 ms a step. The learner trains on every step once, on the same two cores. What is reached is compared with the
smaller of two limits, measured in the same round:

    unhindered  64 steps every 50 ms and a forward pass over 64 frames on one core
    bare        forward and backward passes alone, a process per core
"""

import argparse

from harness.acting_envs import SLEEP_S, make_bank
from harness.report import line, medians, table
from harness.whole_cases import CASES, share_cores
from harness.whole_ours import train
from harness.whole_sides import limit

CASE = "slow"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of our configuration")
    arguments = parser.parse_args()
    share_cores()
    make_bank()
    rounds = [measure(number, arguments) for number in range(arguments.rounds)]
    print(table("steps/s", rounds, digits=0))
    middle = medians(rounds)
    print(line("slow_training", "50ms", "steps/s", middle["ours"], limit=min(middle["unhindered"], middle["bare"])))


def measure(number: int, arguments: argparse.Namespace) -> dict[str, float]:
    """One round."""
    bare = limit(CASE, arguments.seconds)
    trace = train(CASE, arguments.set, seed=number, seconds=arguments.warm_up + arguments.seconds)
    return {
        "ours": trace.rate(arguments.warm_up, arguments.seconds),
        "unhindered": CASES[CASE].envs / (SLEEP_S + bare.forward_s),
        "bare": bare.best,
    }


if __name__ == "__main__":
    main()
