"""Crafter by `crafter-wide`: the score over all episodes, as Hafner 2021 defines it, and the return at the end.

    python benchmarks/crafter_training.py [--seeds 1 2 3] [--runs DIR] [--set KEY=VALUE ...]

One run per seed, one after the other, each more than an hour on two cores. Runs that DIR has already are not made
again, whatever `--set` says, and those that were broken off go on. The peer is what Moon et al. 2023 publish of PPO
after the same million steps, https://arxiv.org/abs/2307.03486: a score of 15.6 % and a return of 10.3, by a network of
4 million parameters. Their return is the mean over the last 100,000 steps (`summary.py` of their repository); the mean
over all episodes stands beside it.
"""

import argparse
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from harness import long_runs
from harness.fragments import CACHE
from harness.report import aligned, line
from minefleet.core.crafter_score import METRICS, score
from minefleet.runs.episode_table import read_episodes

PUBLISHED_SCORE, PUBLISHED_RETURN = 15.6, 10.3
END_STEPS = 100_000
"""Environment steps before the end of a training whose episodes make up its return."""


class Episode(NamedTuple):
    """The results of an episode."""

    length: int
    """Environment steps."""
    episode_return: float
    unlocked: dict[str, float]
    """1 or 0 by achievement."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, default=CACHE / "crafter-runs", help="folder of the runs, which stay")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of the configuration")
    arguments = parser.parse_args()
    rows, scores, returns = [["seed", "episodes", "score", "return", "return of all"]], [], []
    for seed in arguments.seeds:
        episodes = train(arguments.runs / f"seed-{seed}", [f"seed={seed}", *arguments.set])
        scores.append(score_of(episodes))
        returns.append(mean_return(last(episodes, END_STEPS)))
        figures = (scores[-1], returns[-1], mean_return(episodes))
        rows.append([str(seed), f"{len(episodes):,}", *(f"{figure:.2f}" for figure in figures)])
        print(aligned(rows[:1] + rows[-1:]), flush=True)
    print(aligned(rows))
    print(line("crafter_training", "score", "%", median(scores), peer=PUBLISHED_SCORE))
    print(line("crafter_training", "return", "achievements", median(returns), peer=PUBLISHED_RETURN))


def train(directory: Path, overrides: Sequence[str]) -> list[Episode]:
    """Trains a run, unless it is there and over. Returns its episodes in the order in which they ended."""
    long_runs.train("crafter-wide", overrides, directory)
    return [
        Episode(row["length"], row["episode_return"], row["metrics"])
        for row in read_episodes(directory / "episodes.csv")
        if not (row["evaluation"] or row["failure"])
    ]


def last(episodes: Sequence[Episode], env_steps: int) -> Sequence[Episode]:
    """The last episodes, of so many environment steps together at most."""
    steps_to_end = list(accumulate(episode.length for episode in reversed(episodes)))
    return episodes[-bisect_right(steps_to_end, env_steps) :]


def score_of(episodes: Sequence[Episode]) -> float:
    """The score, in percent."""
    return score({name: fmean(episode.unlocked[name] for episode in episodes) for name in METRICS})


def mean_return(episodes: Sequence[Episode]) -> float:
    """The mean return."""
    return fmean(episode.episode_return for episode in episodes)


if __name__ == "__main__":
    main()
