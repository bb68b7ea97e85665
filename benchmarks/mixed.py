"""Fast and slow environments in one run: which share of the slow ones' steps is trained on.

python benchmarks/mixed.py [--minutes 1] [--case large small one-slow too-slow] [--peers]
python benchmarks/mixed.py --draw FILE LABEL=metrics.jsonl …

large           eight environments, four of 1 ms a step, four of 60 ms; iterations of 4,096 steps
small           the same, iterations of 256 steps: a full fragment of a slow one takes longer than it may be used
balanced        as large, but both tasks are to have as many steps
one-slow        63 environments of 20 ms and one of 1 s, iterations of 8,192 steps, `max_staleness` 2
recall          as large, but a cue is to be remembered for 16 steps, by a policy with memory; iterations of 1,024 steps
recall-in-turn  the same, but nothing is cut, and nothing is stale
too-slow        as small, but the slow ones take 5 s a step: the run says so
resets          16 alike, of 50 ms a step, that take 5 s to reset after 20 s of play; `max_staleness` and `max_reuse` 2;
                steps per second are named as a share of those that the environments would make alone

With `--peers`, RLlib's PPO and APPO and Sample Factory play large and small, too. `--draw` runs nothing: it draws the
returns of both tasks in runs that are over.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.peers import PEERS, install, run_within
from harness.report import line

CONFIG = Path(__file__).parent / "harness" / "mixed_run.py"
BATCHES = "train_config.batches_per_iteration"
MIX = {"fast_s": 0.001, "slow_s": 0.06, "one_in": 2}
RESETTING = 16
"""Environments of the case `resets`."""
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "large": (MIX, [f"{BATCHES}=16"]),
    "small": (MIX, [f"{BATCHES}=1"]),
    "balanced": (MIX, [f"{BATCHES}=16", "rollout_config.replay_buffer_config.balance=task"]),
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
    "recall": ({**MIX, "recall": True}, []),
    "recall-in-turn": (
        {**MIX, "recall": True},
        ["rollout_config.replay_buffer_config.max_staleness=0", "rollout_config.min_fragment_length=64"],
    ),
    "too-slow": ({**MIX, "slow_s": 5.0}, [f"{BATCHES}=1"]),
    "resets": (
        {"fast_s": 0.05, "slow_s": 0.05, "one_in": 2, "reset_s": 5.0, "episode": 400},
        [
            f"{BATCHES}=2",
            f"rollout_config.worker_config.num_envs={RESETTING}",
            "rollout_config.replay_buffer_config.max_staleness=2",
            "rollout_config.replay_buffer_config.max_reuse=2",
        ],
    ),
}
STEPS_OF = {"large": 4096, "small": 256}
"""Steps per iteration, of the cases that peers play."""
PEERS_OF = {
    "RLlib PPO": ("rllib", "rllib_mixed.py", ["PPO"]),
    "RLlib APPO": ("rllib", "rllib_mixed.py", ["APPO"]),
    "Sample Factory": ("sample_factory", "sample_factory_mixed.py", []),
}
"""The environment, the program and its first arguments."""
GRACE_S = 120.0
"""That a peer may take longer than it was told."""
STEPS = 32
WINDOW = 20
"""Iterations that one line of metrics counts steps over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--draw", nargs="+", metavar=("FILE", "LABEL=METRICS"))
    arguments = parser.parse_args()
    if arguments.draw:
        draw(*arguments.draw)
        return
    for case in arguments.case:
        measure(case, arguments.minutes)
        for peer in PEERS_OF if arguments.peers and case in STEPS_OF else ():
            print(f"{case}: {peer}: {measure_peer(peer, case, arguments.minutes)}", flush=True)


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
    print(f"{case}: {described(rows, speeds.get('episode', STEPS))}")
    print(line("mixed", case, "trained share of slow steps", trained_share(rows)))
    if "reset_s" in speeds:
        print(line("mixed", case, "steps of those without waiting", played_share(rows, speeds)))


def measure_peer(peer: str, case: str, minutes: float) -> str:
    """Trains a peer. Returns the JSON text that it ends with, or how it ended where there is none."""
    name, program, first = PEERS_OF[peer]
    python = install(name, constrained=False)
    with tempfile.TemporaryDirectory() as directory:
        mixed = json.dumps({**CASES[case][0], "births": f"{directory}/births"})
        words = [str(PEERS / program), *first, str(60 * minutes), str(STEPS_OF[case])]
        ended, lines = run_within(
            60 * minutes + GRACE_S, [str(python), *words], Path(directory), {"MIXED": mixed, "COUNTS": directory}
        )
    return next((text for text in reversed(lines) if text.startswith("{")), ended)


def trained_share(rows: list[dict[str, Any]]) -> float:
    """Steps of slow environments that were trained on, of those that were settled, from the first iteration on."""
    shares = [row["step_shares"].get("slow", {}) for row in rows[WINDOW::WINDOW] or rows[-1:]]
    trained: int = sum(share.get("trained_steps", 0) for share in shares)
    dropped: int = sum(sum(share.get("dropped_steps", {}).values()) for share in shares)
    return trained / max(trained + dropped, 1)


def played_share(rows: list[dict[str, Any]], speeds: dict[str, Any]) -> float:
    """Steps that were played, of those that the environments would play if none ever waited for a grant."""
    first, last = rows[min(WINDOW, len(rows) // 2)], rows[-1]
    played: float = (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"])
    play_s = speeds["episode"] * speeds["fast_s"]
    alone: float = RESETTING * speeds["episode"] / (play_s + speeds["reset_s"])
    return played / alone


def draw(picture: str, *runs: str) -> None:
    """Draws returns over minutes, one panel for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
    for panel, (label, _, metrics) in zip(panels, (run.partition("=") for run in runs), strict=True):
        rows = [json.loads(text) for text in Path(metrics).read_text().splitlines()]
        for task in ("fast", "slow"):
            told = [(row["wall_s"] / 60, row["tasks"][task]["return_mean"]) for row in rows if task in row["tasks"]]
            panel.plot(*zip(*told, strict=True), label=task)
        panel.set(title=label, xlabel="minutes", ylim=(0, STEPS + 1))
    panels[0].set_ylabel(f"return of {STEPS} steps")
    panels[-1].legend(loc="lower right")
    figure.savefig(picture)


def described(rows: list[dict[str, Any]], steps: int) -> str:
    """The speed of the run, and the return of each task."""
    last, tasks = rows[-1], rows[-1].get("tasks", {})
    returns = ", ".join(f"{name} {task['return_mean']:.1f}" for name, task in tasks.items() if task["episodes"])
    return (
        f"{last['iteration'] / last['wall_s']:.2f} iterations/s, {last['env_steps'] / last['wall_s']:.0f} steps/s; "
        f"returns of {steps} steps: {returns}"
    )


if __name__ == "__main__":
    main()
