"""An actor of 64 slow environments: how close to the rate at which none ever waits for another.

    python benchmarks/actor_slow.py [--rounds 3] [--seconds 20] [--case healthy faulty]

A step takes 50 ms of sleep in a process of its own, a batch of any size takes the policy 5 ms of sleep: as Minecraft
takes them, and a GPU. The actor is a real one, with its replay and its parameters; every step is stored and acked.

    healthy  the limit is 64 / 55 ms
    faulty   one environment never answers, another one's process dies a second after each start; the limit is what
             the other 62 allow and, while it lives, the one that dies: it is counted as whole, 63 / 55 ms

Beside them, in the same rounds, `bare`: 64 processes that only sleep and one that only waits for them. That is what the
machine allows; it is the peer.
"""

import argparse
import sys
from typing import Any

import yaml

from harness.acting import SLOTS, act, config_of, share_cores
from harness.acting_envs import SLEEP_S
from harness.acting_parts import FORWARD_S
from harness.peers import figure
from harness.report import line, medians, table
from minefleet_actor.pool.episode_seed import episode_seed

SEED = 0
EPISODES = 4096
"""More than a slot begins in a measurement."""
LOSSES = {"healthy": 0, "faulty": 1}
"""Environments without which the limit is reckoned, by case."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--case", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--worker", nargs="*", default=[], metavar="KEY=VALUE", help="keys of worker_config")
    arguments = parser.parse_args()
    share_cores()
    worker = {key: yaml.safe_load(value) for key, _, value in (pair.partition("=") for pair in arguments.worker)}
    rounds = [
        {"bare": figure([sys.executable, "-m", "harness.acting_bare", str(arguments.seconds)])}
        | {
            case: act(config(case, worker), warm_up_s=arguments.warm_up_s, seconds=arguments.seconds)
            for case in arguments.case
        }
        for _ in range(arguments.rounds)
    ]
    print(table("steps/s", rounds, digits=0))
    middle = medians(rounds)
    for case in arguments.case:
        peer = middle["bare"] * (SLOTS - LOSSES[case]) / SLOTS
        print(line("actor_slow", case, "steps/s", middle[case], peer=peer, limit=limit(case)))


def limit(case: str) -> float:
    """Steps per second if no environment ever waited for another, or for the loop."""
    return (SLOTS - LOSSES[case]) / (SLEEP_S + FORWARD_S)


def config(case: str, worker: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a case."""
    kwargs = (
        {} if case == "healthy" else {"frozen": [seed_of(0, 0)], "crashing": [seed_of(1, n) for n in range(EPISODES)]}
    )
    return config_of(
        {"generator": "harness.acting_envs:Sleeper", "kwargs": kwargs},
        {"generator": "harness.acting_parts:waiter"},
        worker,
        fragment_length=64,
    )


def seed_of(slot: int, episode: int) -> int:
    """The seed of an environment that is made for this episode of this slot."""
    return episode_seed(SEED, 0, slot, episode)


if __name__ == "__main__":
    main()
