"""Peers run in environments of their own, below `benchmarks/peers/`."""

import json
import os
import signal
import subprocess
import tempfile
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

BENCHMARKS = Path(__file__).parents[1]
PEERS = BENCHMARKS / "peers"
CONSTRAINTS = BENCHMARKS.parent / "constraints.txt"


def install(peer: str, *, constrained: bool = True) -> Path:
    """Makes `peers/.venv-PEER` from `peers/PEER.txt`, anew when that has changed; returns its interpreter.

    Where there is a `peers/PEER-alone.txt`, what that names is installed without what it depends on.

    Args:
        peer: Its name.
        constrained: Whether `constraints.txt` holds; not for peers that need another NumPy than ours.
    """
    directory, requirements = PEERS / f".venv-{peer}", PEERS / f"{peer}.txt"
    python, installed = directory / "bin" / "python", directory / ".installed"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        venv.create(directory, with_pip=True)
        constraints = ["-c", str(CONSTRAINTS)] if constrained else []
        pip = [str(python), "-m", "pip", "install", "-q", *constraints]
        subprocess.run([*pip, "-r", str(requirements)], check=True)
        if (alone := PEERS / f"{peer}-alone.txt").exists():
            subprocess.run([*pip, "--no-deps", "-r", str(alone)], check=True)
        installed.write_text(requirements.read_text())
    return python


def figure(command: list[str], **environ: str) -> float:
    """Runs one side of a benchmark as a process; returns the number that it prints on a line of its own."""
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path} | environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    return float(next(text for text in reversed(done.stdout.splitlines()) if is_number(text)))


def run_within(
    limit_s: float, command: Sequence[str], directory: Path, environ: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Runs a process in a folder, and ends what it leaves behind. Returns how it ended, and its lines."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=directory, env=os.environ | environ, stdout=said, stderr=errors, start_new_session=True
        )
        try:
            process.wait(limit_s)
            ended = "ran"
        except subprocess.TimeoutExpired:
            ended = "hung, and was killed"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        lines, reasons = (_lines(file) for file in (said, errors))
    if code and ended == "ran":
        ended = f"stopped with code {code} ({' '.join(reasons[-1:])[:120]})"
    return ended, lines


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return [text for text in file.read().splitlines() if text.strip()]


def is_number(text: str) -> bool:
    """Whether a line is a number with a decimal point."""
    try:
        return isinstance(json.loads(text), float)
    except ValueError:
        return False
