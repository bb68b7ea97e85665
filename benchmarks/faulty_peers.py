"""Compares crashing environments with peers: steps per second, trained share, and which systems stop.

python benchmarks/faulty_peers.py [--minutes 3]

32 environments of 50 ms a step, of which one in 200 raises: `harness/mortal_run.py`. At best 640 steps/s are played.
RLlib has its options to restart what fails; Sample Factory and TorchRL have none. Played is what left a byte on the
disk.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.peers import PEERS, install, is_number, run_within

CONFIG = Path(__file__).parent / "harness" / "mortal_run.py"
PROGRAMS = {"RLlib": ("rllib", "rllib_mortal.py"), "TorchRL": ("torchrl", "torchrl_mortal.py")}
PROGRAMS |= {"Sample Factory": ("sample_factory", "sample_factory_mortal.py")}
GRACE_S = 180.0
"""That a side may take longer than it was told."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--side", nargs="+", choices=["minefleet", *PROGRAMS], default=["minefleet", *PROGRAMS])
    arguments = parser.parse_args()
    for side in arguments.side:
        with tempfile.TemporaryDirectory() as directory:
            print(f"{side}: {measure(side, arguments.minutes, Path(directory))}", flush=True)


def measure(side: str, minutes: float, directory: Path) -> str:
    """Runs one side for so long, and says what became of it."""
    if side == "minefleet":
        command = [sys.executable, "-m", "minefleet", "train", str(CONFIG), f"stop.minutes={minutes}"]
        command += ["--run-dir", str(directory / "run")]
    else:
        name, program = PROGRAMS[side]
        command = [str(install(name, constrained=False)), str(PEERS / program), str(60 * minutes)]
    played, began = directory / "steps", time.monotonic()
    played.touch()
    ended, said = run_within(60 * minutes + GRACE_S, command, directory, {"STEPS": str(played)})
    seconds, steps = time.monotonic() - began, played.stat().st_size
    trained = trained_steps(said)
    share = f"{trained / steps:.2f} of them trained on" if trained is not None and steps else "trained on: not told"
    return f"{ended} after {seconds / 60:.1f} min; {steps / seconds:.0f} steps/s played, {share}"


def trained_steps(said: Sequence[str]) -> float | None:
    """The number of trained steps in a side's last report."""
    for text in reversed(said):
        if is_number(text):
            return float(text)
        if text.startswith("{"):
            return float(json.loads(text)["trained_steps"])
    return None


if __name__ == "__main__":
    main()
