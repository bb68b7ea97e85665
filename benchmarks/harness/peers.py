"""Peers run in environments of their own, below `benchmarks/peers/`."""

import subprocess
import venv
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
PEERS = BENCHMARKS / "peers"
CONSTRAINTS = BENCHMARKS.parent / "constraints.txt"


def install(peer: str, *, constrained: bool = True) -> Path:
    """Makes `peers/.venv-PEER` from `peers/PEER.txt` once; returns its interpreter.

    Args:
        peer: Its name.
        constrained: Whether `constraints.txt` holds; not for peers that need another NumPy than ours.
    """
    directory = PEERS / f".venv-{peer}"
    python, installed = directory / "bin" / "python", directory / ".installed"
    if not installed.exists():
        venv.create(directory, with_pip=True)
        constraints = ["-c", str(CONSTRAINTS)] if constrained else []
        requirements = ["-r", str(PEERS / f"{peer}.txt")]
        subprocess.run([python, "-m", "pip", "install", "-q", *constraints, *requirements], check=True)
        installed.touch()
    return python
