"""Looks at a machine and at the interpreter of the environments: what is there, what is missing, and what to do.

Nothing is imported or run but interpreters, Java and `nvidia-smi`, asked for their versions: no code of the user's, no
game. What a Minecraft package needs is looked at only where the interpreter has one.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from minefleet.config import FleetConfig
from minefleet.errors import ConfigError
from minefleet.launch import ports
from minefleet.launch.machine import count_gpus
from minefleet_worker import boot

GUIDE = "docs/minecraft.md"
OURS = "minefleet_worker.minecraft.minerl:"
"""Generators that need MineRL."""
QUOTED = 100
"""Characters of what a program said that are repeated."""
NEEDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "minerl": {"gym": ("gym",), "OpenCV": ("opencv-python", "opencv-python-headless")},
}
"""What a Minecraft package is used with, by any of the names under which it is installed."""
ANSWER_S = 60.0
"""Longest that a program may take to say its version, seconds."""
JAVA_ANSWERS_S = 20.0
NEEDED = ("torch", "gymnasium", "numpy", "grpcio")
MINERL, MINESTUDIO = "minerl", "minestudio"
LIMITS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    MINERL: {"numpy": (1, 24), "gym": (0, 24)},
    MINESTUDIO: {"numpy": (2, 0)},
}
"""The first version of a package that a Minecraft package does not work with."""
JAR = Path("build", "libs", "mcprec-6.13.jar")
"""The engine, in the folder of each of the packages."""
JAVA = 8
SHM = Path("/dev/shm")
SMALL_SHM_BYTES = 2**30
FEW_FILES = 4096
ROOM_BYTES = 10 * 2**30
"""What a run takes beside its store of replay, generously: checkpoints, videos, logs."""
LOOK = """
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


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not for everything or not for long."""
    PROBLEM = "problem"
    """It will not work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    subject: str
    text: str
    """What there is; where that is too little, what to do."""


def examine(config: FleetConfig, directory: Path, shared_memory: Path = SHM) -> Iterator[Finding]:
    """Yields what is found, in an order to read.

    Args:
        config: Names the interpreter, the addresses and the bounds on disk.
        directory: Where runs go.
        shared_memory: Where the system has it.
    """
    yield _fleet()
    yield _gpu()
    yield _disk(config, directory)
    yield _shared_memory(shared_memory)
    yield _open_files()
    yield _ports(config)
    looked = look_into(config.env.python)
    if isinstance(looked, Finding):
        yield looked
        return
    yield from _interpreter(looked)
    if config.env.generator.startswith(OURS) and MINERL not in looked["packages"]:
        text = f"{looked['name']} has none, and the environment wants it: name an interpreter that has by env.python"
        yield Finding(level=Level.PROBLEM, subject=MINERL, text=text)
    if not {MINERL, MINESTUDIO} & set(looked["packages"]):
        return
    yield _java()
    yield from _display(looked["packages"])
    if MINERL in looked["packages"]:
        yield _engine(MINERL, Path(looked["minerl"]) / "MCP-Reborn", "build it with MineRL's own setup")
    if MINESTUDIO in looked["packages"]:
        place = os.environ.get("MINESTUDIO_DIR") or str(Path(tempfile.gettempdir()) / "MineStudio")
        fetch = f"fetch it with `{looked['name']} -m minestudio.simulator.entry -y`, and set MINESTUDIO_DIR"
        yield _engine(MINESTUDIO, Path(place) / "engine", fetch)


def look_into(python: str) -> dict[str, Any] | Finding:
    """Asks an interpreter what it is and has; "" is the fleet's own. A finding where it does not answer."""
    name = python or sys.executable
    subject = "env.python" if python else "python"
    # Isolated: nothing in the current folder is imported, and it does not see the fleet's packages.
    said = _ask([name, *(["-I"] if python else []), "-c", LOOK], boot.environment(python))
    if isinstance(said, OSError):
        text = f"{name} cannot be started ({said.strerror}); give the path of an interpreter"
        return Finding(level=Level.PROBLEM, subject=subject, text=text)
    try:
        return dict(json.loads(said.splitlines()[-1]), name=name, subject=subject)
    except (IndexError, ValueError):
        last = (said.strip().splitlines() or ["nothing"])[-1]
        text = f"{name} is no Python {'.'.join(map(str, boot.OLDEST))} or newer: it said {last[:QUOTED]}"
        return Finding(level=Level.PROBLEM, subject=subject, text=text)


def _fleet() -> Finding:
    missing, there = [], []
    for name in NEEDED:
        try:
            there.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    version = ".".join(map(str, sys.version_info[:3]))
    if missing:
        text = f"Python {version} lacks {', '.join(missing)}; install minefleet with its extras"
        return Finding(level=Level.PROBLEM, subject="fleet", text=text)
    return Finding(level=Level.OK, subject="fleet", text=f"Python {version}, {', '.join(there)}")


def _gpu() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding(level=Level.PROBLEM, subject="gpu", text=f"torch does not import: {error}")
    listed = count_gpus()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Finding(level=Level.OK, subject="gpu", text=", ".join(names))
    if listed:
        text = f"the driver has {listed}, and torch {torch.__version__} cannot use any; install a torch for its CUDA"
        return Finding(level=Level.PROBLEM, subject="gpu", text=text)
    return Finding(level=Level.WARNING, subject="gpu", text="none: VPT trains on a GPU only, small policies do without")


def _disk(config: FleetConfig, directory: Path) -> Finding:
    """Free space where runs go, or will when the folder is made."""
    there = next(place for place in (directory.absolute(), *directory.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    replay = config.rollout_config.replay_buffer_config
    store = replay.max_bytes * len(config.services.replay)
    text = f"{_gb(free)} free at {there}"
    if free < store:
        advice = f"replay may take {_gb(store)}: lower rollout_config.replay_buffer_config.max_bytes or make room"
        return Finding(level=Level.PROBLEM, subject="disk", text=f"{text}; {advice}")
    if free < store + ROOM_BYTES:
        return Finding(level=Level.WARNING, subject="disk", text=f"{text}; replay may take {_gb(store)} of it")
    return Finding(level=Level.OK, subject="disk", text=text)


def _shared_memory(place: Path) -> Finding:
    size = shutil.disk_usage(place).total if place.is_dir() else 0
    if size < SMALL_SHM_BYTES:
        text = f"{place} has {_gb(size)}; several ranks need {_gb(SMALL_SHM_BYTES)}: `docker run --shm-size=2g`"
        return Finding(level=Level.WARNING, subject="shared memory", text=text)
    return Finding(level=Level.OK, subject="shared memory", text=f"{place} has {_gb(size)}")


def _open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        text = f"at most {hard} per process; a large fleet needs {FEW_FILES}: raise `ulimit -Hn`"
        return Finding(level=Level.WARNING, subject="open files", text=text)
    return Finding(level=Level.OK, subject="open files", text=f"at most {hard} per process")


def _ports(config: FleetConfig) -> Finding:
    try:
        claimed = ports.claim(config.services)
    except ConfigError as error:
        return Finding(level=Level.PROBLEM, subject="ports", text=str(error))
    listed = [claimed.parameters.address, claimed.learner.address, *(each.address for each in claimed.replay)]
    return Finding(level=Level.OK, subject="ports", text=f"free, for example {', '.join(sorted(listed))}")


def _interpreter(looked: Mapping[str, Any]) -> Iterator[Finding]:
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


def _java() -> Finding:
    said = _ask(["java", "-version"], os.environ, JAVA_ANSWERS_S)
    if isinstance(said, TimeoutError):
        return Finding(
            level=Level.PROBLEM, subject="java", text=f"{shutil.which('java')} does not answer: {said.strerror}"
        )
    if isinstance(said, OSError):
        text = f"there is none; Minecraft needs Java {JAVA}: {GUIDE}"
        return Finding(level=Level.PROBLEM, subject="java", text=text)
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    line = (said.strip().splitlines() or ["it said nothing"])[0]
    if found is None or int(found[1]) != JAVA:
        text = f"{line}; Minecraft needs Java {JAVA}, found first on PATH: {GUIDE}"
        return Finding(level=Level.PROBLEM, subject="java", text=text)
    return Finding(level=Level.OK, subject="java", text=line)


def _display(packages: Mapping[str, str]) -> Iterator[Finding]:
    """MineRL needs `DISPLAY` or an Xvfb that we start; MineStudio starts `xvfb-run` itself."""
    if MINERL in packages:
        if display := os.environ.get("DISPLAY"):
            yield Finding(level=Level.OK, subject="display", text=f"DISPLAY is {display}")
        elif xvfb := shutil.which("Xvfb"):
            yield Finding(level=Level.OK, subject="display", text=f"none; each environment starts {xvfb}")
        else:
            text = "DISPLAY is not set and there is no Xvfb; `apt install xvfb`"
            yield Finding(level=Level.PROBLEM, subject="display", text=text)
    if MINESTUDIO in packages and shutil.which("xvfb-run") is None:
        text = "MineStudio starts its engine by xvfb-run, and there is none; `apt install xvfb`"
        yield Finding(level=Level.PROBLEM, subject="display", text=text)


def _engine(package: str, folder: Path, advice: str) -> Finding:
    jar = folder / JAR
    if jar.is_file():
        return Finding(level=Level.OK, subject=f"{package}'s engine", text=str(jar))
    text = f"there is no {jar}; {advice}: {GUIDE}"
    return Finding(level=Level.PROBLEM, subject=f"{package}'s engine", text=text)


def _ask(command: list[str], variables: Mapping[str, str], timeout_s: float = ANSWER_S) -> str | OSError:
    """All that a program says; the error where it does not start, or does not end."""
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return error
    except subprocess.TimeoutExpired:
        return TimeoutError(0, f"it said nothing for {timeout_s:g} s")
    return done.stdout


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
