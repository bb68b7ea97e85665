"""CartPole: area under the learning curve, ours against stable-baselines3's PPO with the same hyper-parameters.

    python benchmarks/learning.py [--seeds 5] [--env-steps 200000]

Both run in turn, seed by seed. The area is the mean over environment steps of the mean return of the last 100 episodes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harness.peers import PEERS, install

Points = list[tuple[int, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, default=200_000)
    arguments = parser.parse_args()
    peer_python = install("sb3")
    rows = []
    for seed in range(1, arguments.seeds + 1):
        rows.append((area(run_ours(seed, arguments.env_steps)), area(run_peer(peer_python, seed, arguments.env_steps))))
        print(f"seed {seed}: ours {rows[-1][0]:.1f}, stable-baselines3 {rows[-1][1]:.1f}", flush=True)
    ours, peer = (statistics.median(column) for column in zip(*rows, strict=True))
    line = {"benchmark": "learning", "case": "cartpole-area", "unit": "return", "ours": ours, "peer": peer}
    print(json.dumps(line | {"limit": None, "ratio_peer": ours / peer, "ratio_limit": ours / 500}))


def run_ours(seed: int, env_steps: int) -> Points:
    """The points of one run of the preset."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        command = [
            sys.executable,
            "-m",
            "minefleet",
            "train",
            "cartpole",
            f"seed={seed}",
            f"stop.env_steps={env_steps}",
        ]
        subprocess.run([*command, "--run-dir", str(directory)], check=True, capture_output=True)
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(row["env_steps"], row["episode_return_mean"]) for row in rows if row["episode_return_mean"] is not None]


def run_peer(python: Path, seed: int, env_steps: int) -> Points:
    """The points of one run of the peer."""
    command = [str(python), str(PEERS / "sb3_cartpole.py"), str(seed), str(env_steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    points: Points = json.loads(done.stdout.splitlines()[-1])
    return points


def area(points: Points) -> float:
    """Mean of the curve over environment steps."""
    steps, returns = np.array(points).T
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


if __name__ == "__main__":
    main()
