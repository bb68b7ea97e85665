"""Inspects an interpreter of environments: its version, its packages, and conflicts with Minecraft packages in it."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from minefleet.doctor.finding import Finding, Level, ask
from minefleet.doctor.minecraft_checks import GUIDE, MINERL, MINESTUDIO
from minefleet_env import interpreter_command

QUOTED = 100
"""Characters of what a program said that are repeated."""
OPENCV = ("opencv-python", "opencv-python-headless")
NEEDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {MINERL: {"gym": ("gym",), "OpenCV": OPENCV}}
"""Packages that a Minecraft package needs, under any of the names by which they are installed."""
LIMITS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    MINERL: {"numpy": (1, 24), "gym": (0, 24)},
    MINESTUDIO: {"numpy": (2, 0)},
}
"""The first version of a package that a Minecraft package does not work with."""
INSPECT_SCRIPT = """
import json, sys
from importlib import metadata, util
found = {}
for name in ("numpy", "gym", "gymnasium", "opencv-python", "opencv-python-headless", "minerl", "minestudio"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
spec = util.find_spec("minerl") if "minerl" in found else None
place = list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ""
print(json.dumps({"python": list(sys.version_info[:3]), "packages": found, "minerl": place}))
"""


def inspect_python(python: str) -> dict[str, Any] | Finding:
    """Asks an interpreter what it is and has; "" is the fleet's own. A finding where it does not answer."""
    name = python or sys.executable
    subject = "env.python" if python else "python"
    # Isolated: nothing in the current folder is imported, and it does not see the fleet's packages.
    output = ask([name, *(["-I"] if python else []), "-c", INSPECT_SCRIPT], interpreter_command.environment(python))
    if isinstance(output, OSError):
        text = f"{name} cannot be started ({output.strerror}); give the path of an interpreter"
        return Finding(level=Level.PROBLEM, subject=subject, text=text)
    try:
        return dict(json.loads(output.splitlines()[-1]), name=name, subject=subject)
    except (IndexError, ValueError):
        last = (output.strip().splitlines() or ["nothing"])[-1]
        text = f"{name} is no Python {'.'.join(map(str, interpreter_command.OLDEST))} or newer: it said {last[:QUOTED]}"
        return Finding(level=Level.PROBLEM, subject=subject, text=text)


def check_interpreter(looked: Mapping[str, Any]) -> Iterator[Finding]:
    """The interpreter, and what a Minecraft package in it does not work with."""
    packages: dict[str, str] = looked["packages"]
    subject, version = looked["subject"], ".".join(map(str, looked["python"]))
    listed = ", ".join(f"{name} {number}" for name, number in packages.items())
    if "numpy" not in packages:
        text = f"{looked['name']}, Python {version}, has no NumPy, which environment processes need; install it"
        yield Finding(level=Level.PROBLEM, subject=subject, text=text)
        return
    yield Finding(level=Level.OK, subject=subject, text=f"{looked['name']}, Python {version}, {listed}")
    if packages.get(MINERL, "1").split(".")[0] == "0":
        text = f"{packages[MINERL]} is another Minecraft; install 1.0 from its repository: {GUIDE}"
        yield Finding(level=Level.PROBLEM, subject=MINERL, text=text)
    for package, needs in NEEDS.items():
        for name, names in needs.items():
            if package in packages and not packages.keys() & set(names):
                text = f"lacks {name}; install {names[-1]} there"
                yield Finding(level=Level.PROBLEM, subject=package, text=text)
    for package, limits in LIMITS.items():
        for name, limit in limits.items():
            if package in packages and name in packages and _numbers(packages[name]) >= limit:
                text = f"does not work with {name} {packages[name]}; install one below {'.'.join(map(str, limit))}"
                yield Finding(level=Level.PROBLEM, subject=package, text=text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
