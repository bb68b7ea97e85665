"""Prepares MineRL 1.0: an interpreter whose `minerl` has our launcher where the engine's would be.

MineRL looks for `MCP-Reborn/launchClient.sh` beside its own files and nowhere else. So that an installation is left as
it is, a virtual environment of links is laid over it: all packages are those of the installation, and `minerl` is a
folder whose files are links to the installed ones, and which has an `MCP-Reborn` of its own.
"""

import subprocess
from pathlib import Path

from .prepared import LOGS, TAG, Prepared, start_engine, write_script

DISPLAY = ":0"
"""The stand-in draws on none; who plays the real engine may ask for one."""
WHERE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def prepare(python: str, directory: Path) -> Prepared:
    """Makes in a folder an interpreter that has what this one has, but for the engine of its MineRL."""
    installed = _packages(python)
    subprocess.run([python, "-m", "venv", "--without-pip", str(directory / "venv")], check=True)
    overlay = str(directory / "venv" / "bin" / "python")
    packages = _packages(overlay)
    (packages / "installed.pth").write_text(f"{installed}\n")
    _link(installed / "minerl", packages / "minerl")
    _link(installed / "minerl" / "env", packages / "minerl" / "env")
    write_script(packages / "minerl" / "MCP-Reborn" / "launchClient.sh", start_engine())
    return Prepared(python=overlay, variables={TAG: str(directory), LOGS: str(directory / "logs"), "DISPLAY": DISPLAY})


def _packages(python: str) -> Path:
    return Path(subprocess.run([python, "-c", WHERE], check=True, capture_output=True, text=True).stdout.strip())


def _link(source: Path, target: Path) -> None:
    """Makes a folder of links to what lies in another; `env` is a real one, since MineRL asks for its parent."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.name not in ("env", "MCP-Reborn"):
            (target / entry.name).symlink_to(entry)
