"""How far what actors record is from what the learner computes, by the dtype of their inference.

    python benchmarks/parity.py [--env-steps 20000] [--presets cartpole recall crafter]

Runs each preset by real actors in each dtype, with no bound, and prints the largest differences that the learner's
probe found. The bounds in `minefleet_learner/parity.py` come from here.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.report import aligned
from minefleet_learner.parity import BOUNDS

WIRES = ("keep", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--presets", nargs="+", default=["cartpole", "recall", "crafter"])
    arguments = parser.parse_args()
    rows = [["preset", "wire", "actor", "steps", "largest |Δ ln π|", "largest |ΔV|", "bound"]]
    for preset in arguments.presets:
        for wire in WIRES:
            rows += [measure(preset, wire, dtype, arguments.env_steps) for dtype in BOUNDS]
    print(aligned(rows))


def measure(preset: str, wire: str, dtype: str, env_steps: int) -> list[str]:
    """A row of the table."""
    probed = [row for row in run(preset, wire, dtype, env_steps) if row["parity_steps"]]
    steps = sum(row["parity_steps"] for row in probed)
    logp, value = (max(row[key] for row in probed) for key in ("parity_logp", "parity_value"))
    print(json.dumps({"preset": preset, "wire": wire, "dtype": dtype, "logp": logp, "value": value}), flush=True)
    return [preset, wire, dtype, str(steps), f"{logp:.2g}", f"{value:.2g}", f"{BOUNDS[dtype]:g}"]


def run(preset: str, wire: str, dtype: str, env_steps: int) -> list[dict[str, Any]]:
    """The metrics of a run that no difference stops."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        overrides = [
            f"stop.env_steps={env_steps}",
            f"rollout_config.worker_config.dtype={dtype}",
            f"train_config.wire_dtype={wire}",
            "train_config.parity_bound=1e9",
        ]
        command = [sys.executable, "-m", "minefleet", "train", preset, *overrides, "--run-dir", str(directory)]
        subprocess.run(command, check=True, capture_output=True)
        return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
