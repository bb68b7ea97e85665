"""Evaluates a checkpoint or an exported version: `python -m minefleet_actor.evaluation.evaluate DIR --episodes N`."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minefleet.core.crafter_score import score
from minefleet.core.errors import FleetError
from minefleet.launch.env_policy_check import describe_environment
from minefleet.runs.run_yaml import Run, read_run
from minefleet.runs.trained_policy_files import TrainedPolicy, inspect_policy, read_weights
from minefleet_actor.evaluation.player import Played, make_player

SEED_OFFSET = 10_000
"""Runs of different seeds are evaluated on different episodes, so that they do not share one draw's luck."""


def main() -> int:
    """Prints the statistics of some episodes; exit code 2 when the checkpoint cannot be evaluated."""
    arguments = parse(sys.argv[1:])
    try:
        trained = inspect_policy(arguments.checkpoint)
        run = read_run(arguments.checkpoint, trained.run_file)
        if arguments.seed is None:
            arguments.seed = run.config.seed + SEED_OFFSET
        summary = evaluate(run, trained, arguments)
    except (FleetError, OSError) as error:
        print(f"minefleet: {error}", file=sys.stderr)  # noqa: T201  # This module is a command.
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
    parser.add_argument("--video", type=Path, help="also film one of the episodes, into this directory")
    return parser.parse_args(argv)


def evaluate(run: Run, trained: TrainedPolicy, arguments: argparse.Namespace) -> dict[str, Any]:
    """Plays the episodes, films one if so asked, and summarises them."""
    sample, video = arguments.sample or arguments.random, None
    if arguments.video is not None:
        run = renderable(run)
        video = arguments.video / ("random.mp4" if arguments.random else f"version-{trained.version}.mp4")
    player = make_player(run, episodes=arguments.episodes, seed=arguments.seed, greedy=not sample, video=video)
    if not arguments.random:
        player.inference.swap(read_weights(arguments.checkpoint), trained.version)
    with player:
        played = sorted(player.play(arguments.episodes, "evaluation"), key=lambda one: one.record.stream)
    summary = summarise(played, None if arguments.random else trained, greedy=not sample)
    return summary | ({"video": str(player.video)} if video is not None else {})


def renderable(run: Run) -> Run:
    """The run as if videos had been wanted, so that an environment that shows no pixels renders."""
    if run.frame_shape is not None:
        return run
    config = replace(run.config, train_config=replace(run.config.train_config, record_video_interval=1))
    shape = describe_environment(config)["frame_shape"]
    return replace(run, frame_shape=None if shape is None else tuple(shape))


def summarise(played: list[Played], trained: TrainedPolicy | None, *, greedy: bool) -> dict[str, Any]:
    """Means over the episodes of a trained policy, or of a fresh one."""
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
        "actions": "likeliest" if greedy else "sampled",
        "policy_version": None if trained is None else trained.version,
        "env_steps": None if trained is None else trained.env_steps,
    }
    achievements = {name: share for name, share in metrics.items() if name.startswith("achievement/")}
    if achievements:
        summary["crafter_score"] = score(achievements)
    return summary


def describe(summary: dict[str, Any]) -> str:
    """The summary for people."""
    after = "" if summary["env_steps"] is None else f" after {summary['env_steps']} env steps"
    is_fresh = summary["policy_version"] is None
    policy = "a policy without training" if is_fresh else f"policy version {summary['policy_version']}{after}"
    hint = "" if is_fresh or summary["actions"] == "sampled" else " (--sample draws them as in training)"
    episodes = "1 episode" if summary["episodes"] == 1 else f"{summary['episodes']} episodes"
    lines = [
        f"{episodes}: return {summary['return_mean']:.2f} ± {summary['return_std']:.2f} "
        f"(worst {summary['return_min']:.2f}), length {summary['length_mean']:.0f}, "
        f"{policy}, {summary['actions']} actions{hint}"
    ]
    lines += [f"  {name}: {value:.3f}" for name, value in summary["metrics"].items()]
    lines += [f"  {key}: {summary[key]}" for key in ("crafter_score", "video") if key in summary]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
