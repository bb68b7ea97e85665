"""Fast and slow environments in one run: which share of the slow ones' steps is trained on.

python benchmarks/mixed.py [--minutes 1] [--case large small one-slow too-slow]

large     eight environments, four of 1 ms a step, four of 60 ms; iterations of 4,096 steps
small     the same with iterations of 256 steps: a full fragment of a slow one takes longer than it may be used
one-slow  63 environments of 20 ms and one of 1 s, iterations of 8,192 steps, `max_staleness` 2
too-slow  as small, but the slow ones take 5 s a step: the run says so
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.report import line

CONFIG = Path(__file__).parent / "harness" / "mixed_run.py"
BATCHES = "train_config.batches_per_iteration"
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "large": ({"fast_s": 0.001, "slow_s": 0.06, "one_in": 2}, [f"{BATCHES}=16"]),
    "small": ({"fast_s": 0.001, "slow_s": 0.06, "one_in": 2}, [f"{BATCHES}=1"]),
    "one-slow": (
        {"fast_s": 0.02, "slow_s": 1.0, "one_in": 64},
        [
            "train_config.batch_size_per_gpu=32",
            f"{BATCHES}=4",
            "rollout_config.fragment_length=64",
            "rollout_config.worker_config.num_envs=64",
            "rollout_config.replay_buffer_config.max_staleness=2",
        ],
    ),
    "too-slow": ({"fast_s": 0.001, "slow_s": 5.0, "one_in": 2}, [f"{BATCHES}=1"]),
}
STEPS = 32
WINDOW = 20
"""Iterations that one line of metrics counts steps over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    arguments = parser.parse_args()
    for case in arguments.case:
        measure(case, arguments.minutes)


def measure(case: str, minutes: float) -> None:
    """Trains, and prints what became of the slow environments' steps."""
    speeds, keys = CASES[case]
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        mixed = json.dumps({**speeds, "births": f"{directory}/births"})
        command = [sys.executable, "-m", "minefleet", "train", str(CONFIG), "--run-dir", str(run)]
        told = subprocess.run(
            [*command, f"stop.minutes={minutes}", *keys],
            env={**os.environ, "MIXED": mixed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    print(*(f"{case}: {text}" for text in told.stdout.splitlines() if text.startswith("warning")), sep="\n")
    print(f"{case}: {described(rows)}")
    print(line("mixed", case, "trained share of slow steps", trained_share(rows)))


def trained_share(rows: list[dict[str, Any]]) -> float:
    """Steps of slow environments that were trained on, of those that were settled, from the first iteration on."""
    shares = [row["step_shares"].get("slow", {}) for row in rows[WINDOW::WINDOW] or rows[-1:]]
    trained: int = sum(share.get("trained_steps", 0) for share in shares)
    dropped: int = sum(sum(share.get("dropped_steps", {}).values()) for share in shares)
    return trained / max(trained + dropped, 1)


def described(rows: list[dict[str, Any]]) -> str:
    """The speed of the run, and the return of each task."""
    last, tasks = rows[-1], rows[-1].get("tasks", {})
    returns = ", ".join(f"{name} {task['return_mean']:.1f}" for name, task in tasks.items() if task["episodes"])
    return (
        f"{last['iteration'] / last['wall_s']:.2f} iterations/s, {last['env_steps'] / last['wall_s']:.0f} steps/s; "
        f"returns of {STEPS} steps: {returns}"
    )


if __name__ == "__main__":
    main()
