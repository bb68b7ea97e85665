"""Whole training: ours, its peers and a bare loop, with the same network and the same hyper-parameters.

    python benchmarks/training.py [--case pixels vector] [--rounds 3] [--seconds 30] [--set KEY=VALUE ...]

    pixels      frames of Crafter from a bank, three convolutions and a dense layer of 512
    pixels-gru  the same with a GRU of 512
    vizdoom     VizDoom's `basic`, a decision every four ticks, the network of `pixels`
    atari       Pong, prepared as is usual, the network of `pixels` on four grey frames of 84 by 84
    vector      CartPole, two dense layers of 64

Each round runs all sides in turn, a different one first each time, each on the same two cores and with 16 environments.
The figure is the steps per second that the learner has trained on, each once, from `--warm-up` seconds after the first
iteration on. Memory is the most that all processes of a side had together, what they share counted once.

    ours            `minefleet train`: an actor with its environments in one process, two for `vizdoom`, none of their
                    own for `vector`, and the rest
    sample-factory  APPO with two workers, in an interpreter of its own; a process has one thread of torch
    pufferlib       PuffeRL with its serial vectoriser: one process, which plays, then trains. `pixels` and `vector`
    rllib           PPO with two runners of eight environments, the learner in the driver. `pixels` and `vector`
    torchrl         a collector and PPO's loss in one process, which plays, then trains. `pixels` and `vector`
    envpool         EnvPool and the loop of CleanRL, in one process, which plays, then trains. `atari`
    bare            forward and backward passes alone, a process per core: the limit

Which option of the one is which of the other, and what differs, is a table in `docs/benchmarks.md`. What each learns
is compared by `benchmarks/training_returns.py`.
"""

import argparse
from typing import NamedTuple

from harness.acting_envs import make_bank
from harness.report import line, medians, table
from harness.whole_cases import share_cores
from harness.whole_ours import train
from harness.whole_sides import limit, train_other, train_peer

OTHERS = ("pufferlib", "rllib", "torchrl", "envpool")
OURS, PEER, *_, BARE = SIDES = ("ours", "sample-factory", *OTHERS, "bare")
CHOICES = {
    "pixels": (OURS, PEER, "pufferlib", "rllib", "torchrl", BARE),
    "pixels-gru": (OURS, PEER, BARE),
    "vizdoom": (OURS, PEER, BARE),
    "atari": (OURS, "envpool"),
    "vector": (OURS, PEER, "pufferlib", "rllib", "torchrl", BARE),
}
"""The sides of each case."""


class Figures(NamedTuple):
    """A side's figures of a round."""

    steps_per_s: float
    peak_mb: float
    parameters: int


def main() -> None:
    arguments = parse()
    share_cores()
    make_bank()
    lines = []
    for case in arguments.case:
        rounds = [measure(case, number, arguments) for number in range(arguments.rounds)]
        report(case, rounds)
        lines += lines_of(case, rounds)
    print("\n".join(lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of our configuration")
    return parser.parse_args()


def measure(case: str, number: int, arguments: argparse.Namespace) -> dict[str, Figures]:
    """One round."""
    sides = [side for side in arguments.side if side in CHOICES[case]]
    turn = number % len(sides)
    figures = {side: run(side, case, number, arguments) for side in (*sides[turn:], *sides[:turn])}
    return {side: figures[side] for side in sides}


def run(side: str, case: str, seed: int, arguments: argparse.Namespace) -> Figures:
    """Runs one side alone."""
    if side == BARE:
        bare = limit(case, arguments.seconds)
        print(f"{case}, bare: {bare.eager:.0f} as it is, {bare.compiled:.0f} compiled", flush=True)
        return Figures(bare.best, bare.peak_mb, bare.parameters)
    seconds = arguments.warm_up + arguments.seconds
    if side == OURS:
        trace = train(case, arguments.set, seed=seed, seconds=seconds)
    elif side in OTHERS:
        trace = train_other(side, case, seed=seed, seconds=seconds)
    else:
        trace = train_peer(case, seed=seed, seconds=seconds)
    return Figures(trace.rate(arguments.warm_up, arguments.seconds), trace.watch.peak_mb, trace.parameters)


def report(case: str, rounds: list[dict[str, Figures]]) -> None:
    """Prints a case's tables.

    Raises:
        SystemExit: If the networks are not of the same size.
    """
    print(table(f"{case}, steps/s", steps_per_s(rounds), digits=0))
    print(table(f"{case}, memory, MB", peak_mb(rounds), digits=0), flush=True)
    sizes = {side: figures.parameters for side, figures in rounds[0].items()}
    print(f"{case}, parameters:", ", ".join(f"{side} {size:,}" for side, size in sizes.items()), flush=True)
    if len(set(sizes.values())) > 1:
        raise SystemExit(f"the networks of {case} differ in size")


def lines_of(case: str, rounds: list[dict[str, Figures]]) -> list[str]:
    """The JSON lines of a case, where the sides that they compare have run: steps trained per second, and memory."""
    rate, memory = medians(steps_per_s(rounds)), medians(peak_mb(rounds))
    lines = []
    if {OURS, PEER, BARE} <= set(rate):
        lines += [
            line("training", case, "steps/s", rate[OURS], peer=rate[PEER], limit=rate[BARE]),
            line("training", f"{case}-memory", "1/GB", 1e3 / memory[OURS], peer=1e3 / memory[PEER]),
        ]
    others = [side for side in OTHERS if {OURS, side} <= set(rate)]
    return lines + [line("training", f"{case}-{side}", "steps/s", rate[OURS], peer=rate[side]) for side in others]


def steps_per_s(rounds: list[dict[str, Figures]]) -> list[dict[str, float]]:
    return [{side: figures.steps_per_s for side, figures in each.items()} for each in rounds]


def peak_mb(rounds: list[dict[str, Figures]]) -> list[dict[str, float]]:
    return [{side: figures.peak_mb for side, figures in each.items()} for each in rounds]


if __name__ == "__main__":
    main()
