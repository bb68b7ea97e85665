"""Evaluates a checkpoint or an exported version: `python -m minefleet_actor.evaluate DIR --episodes N`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minefleet.crafter_score import score
from minefleet.errors import FleetError
from minefleet.run import Run, read_run
from minefleet.trained import Trained, look, read_weights
from minefleet_actor.film import film
from minefleet_actor.inference import Inference
from minefleet_actor.play import Played, make_player

SEED_OFFSET = 10_000
"""Runs of different seeds are evaluated on different episodes, so that they do not share one draw's luck."""


def main() -> int:
    """Prints the statistics of some episodes; exit code 2 when the checkpoint cannot be evaluated."""
    arguments = parse(sys.argv[1:])
    try:
        trained = look(arguments.checkpoint)
        run = read_run(arguments.checkpoint, trained.run_file)
        if arguments.seed is None:
            arguments.seed = run.config.seed + SEED_OFFSET
        summary = evaluate(run, trained, arguments)
        if arguments.video is not None:
            summary["video"] = str(record(run, trained, arguments))
    except FleetError as error:
        print(error, file=sys.stderr)  # noqa: T201  # This module is a command.
        return 2
    print(json.dumps(summary) if arguments.json else describe(summary))  # noqa: T201
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="minefleet eval", description="Play whole episodes with a checkpoint.")
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, or an exported version")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default 100)")
    parser.add_argument(
        "--seed", type=int, help=f"seed of environments and sampling (default: the run's + {SEED_OFFSET})"
    )
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--random", action="store_true", help="play a freshly initialised policy, sampling")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", type=Path, help="also write a video of one episode into this directory")
    return parser.parse_args(argv)


def evaluate(run: Run, trained: Trained, arguments: argparse.Namespace) -> dict[str, Any]:
    """Plays the episodes and summarises them."""
    sample = arguments.sample or arguments.random
    player = make_player(run, episodes=arguments.episodes, seed=arguments.seed, greedy=not sample)
    take_weights(player.inference, trained, arguments)
    with player:
        return summarise(list(player.play(arguments.episodes, "evaluation")), trained)


def take_weights(inference: Inference, trained: Trained, arguments: argparse.Namespace) -> None:
    """Gives the policy the trained weights, unless a random one is wanted."""
    if not arguments.random:
        inference.swap(read_weights(arguments.checkpoint), trained.version)


def summarise(played: list[Played], trained: Trained) -> dict[str, Any]:
    """Means over the episodes."""
    returns = np.array([one.record.episode_return for one in played])
    names = sorted({name for one in played for name in one.record.metrics})
    metrics = {name: float(np.mean([one.record.metrics[name] for one in played])) for name in names}
    summary: dict[str, Any] = {
        "episodes": len(played),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "length_mean": float(np.mean([one.record.length for one in played])),
        "value_mean": float(np.mean([one.value_mean for one in played])),
        "metrics": metrics,
        "policy_version": trained.version,
        "env_steps": trained.env_steps,
    }
    achievements = {name: share for name, share in metrics.items() if name.startswith("achievement/")}
    if achievements:
        summary["crafter_score"] = score(achievements)
    return summary


def record(run: Run, trained: Trained, arguments: argparse.Namespace) -> Path:
    """Writes a video of one episode."""
    name = "random.mp4" if arguments.random else f"version-{trained.version}.mp4"
    sample = arguments.sample or arguments.random
    inference = make_player(run, episodes=1, seed=arguments.seed, greedy=not sample).inference
    take_weights(inference, trained, arguments)
    return film(run, inference, arguments.video / name, seed=arguments.seed)


def describe(summary: dict[str, Any]) -> str:
    """The summary for people."""
    after = "" if summary["env_steps"] is None else f" after {summary['env_steps']} env steps"
    lines = [
        f"{summary['episodes']} episodes: return {summary['return_mean']:.2f} ± {summary['return_std']:.2f} "
        f"(worst {summary['return_min']:.2f}), length {summary['length_mean']:.0f}, "
        f"policy version {summary['policy_version']}{after}"
    ]
    lines += [f"  {name}: {value:.3f}" for name, value in summary["metrics"].items()]
    lines += [f"  {key}: {summary[key]}" for key in ("crafter_score", "video") if key in summary]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
