"""Our adapter of MineRL 1.0 against a bare loop of `env.step`, in the same interpreter, over the stand-in engine.

    MINERL_PYTHON=/path/to/python python benchmarks/minerl.py [--rounds 5] [--steps 200]

Steps per second of one environment. Both sides live in one process, each with an engine of its own, press the same
keys, and take turns every few steps, so that what else the machine does hits both.

    ours    our adapter with the actions of VPT and a reward: it maps actions, resizes frames, and pays
    bare    what `gym.make` makes, with actions that are ready: the peer

In `basalt`, MineRL parses nothing but the frame, so that all that the adapter does is on top; in `survival` it parses
fifteen observables, of which the adapter needs one.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.report import line, medians, table

ROOT = Path(__file__).parents[1]
SIDES = Path(__file__).parent / "harness" / "minerl_sides.py"
CASES = {"basalt": "MineRLBasaltFindCave-v0", "survival": "MineRLHumanSurvival-v0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    python = os.environ.get("MINERL_PYTHON")
    if not python:
        print("skipped: MINERL_PYTHON names no interpreter with MineRL 1.0", file=sys.stderr)
        return
    lines = []
    for case, name in CASES.items():
        rounds = measure(python, name, arguments.rounds, arguments.steps)
        print(table(f"{case}, steps/s", rounds, digits=0))
        middle = medians(rounds)
        lines.append(line("minerl", case, "steps/s", middle["ours"], peer=middle["bare"]))
    print("\n".join(lines))


def measure(python: str, name: str, rounds: int, steps: int) -> list[dict[str, float]]:
    """Steps per second of both sides, by round."""
    sys.path.append(str(ROOT / "tests"))
    engine = importlib.import_module("engine.prepare_minerl")
    with tempfile.TemporaryDirectory() as directory:
        prepared = engine.prepare(python, Path(directory))
        command = [prepared.python, str(SIDES), str(ROOT / "clients"), name, str(rounds), str(steps)]
        variables = prepared.environ(DISPLAY=":0")
        variables.pop("PYTHONPATH", None)
        try:
            done = subprocess.run(command, env=variables, cwd=directory, capture_output=True, text=True, check=False)
        finally:
            prepared.end()
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    figures: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
