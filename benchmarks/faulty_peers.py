"""What environments that crash cost, beside peers: steps per second, what is trained on, and who stops.

python benchmarks/faulty_peers.py [--minutes 3]

32 environments of 50 ms a step, of which one in 200 raises: `harness/mortal_run.py`. At best 640 steps/s are played.
RLlib has its options to restart what fails; Sample Factory and TorchRL have none. Played is what left a byte on the
disk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.peers import PEERS, install, is_number

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
    ended, said = run(command, directory, {"STEPS": str(played)}, 60 * minutes + GRACE_S)
    seconds, steps = time.monotonic() - began, played.stat().st_size
    trained = trained_steps(said)
    share = f"{trained / steps:.2f} of them trained on" if trained is not None and steps else "trained on: not told"
    return f"{ended} after {seconds / 60:.1f} min; {steps / seconds:.0f} steps/s played, {share}"


def run(command: Sequence[str], directory: Path, environ: dict[str, str], limit_s: float) -> tuple[str, list[str]]:
    """Runs a process. Returns how it ended, and its lines."""
    options: dict[str, Any] = {"cwd": directory, "env": os.environ | environ, "timeout": limit_s}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except subprocess.TimeoutExpired as expired:
        text = expired.stdout or b""
        return "hung, and was killed", (text if isinstance(text, str) else text.decode()).splitlines()
    if done.returncode:
        reason = [text for text in done.stderr.splitlines() if text.strip()][-1:]
        return f"stopped with code {done.returncode} ({' '.join(reason)[:120]})", done.stdout.splitlines()
    return "ran", done.stdout.splitlines()


def trained_steps(said: Sequence[str]) -> float | None:
    """What a side says in the end that it has trained on."""
    for text in reversed(said):
        if is_number(text):
            return float(text)
        if text.startswith("{"):
            return float(json.loads(text)["trained_steps"])
    return None


if __name__ == "__main__":
    main()
