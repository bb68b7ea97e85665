"""Counts this machine's cores and GPUs, without torch."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_FILE = re.compile(r"nvidia\d+")
LIST_TIMEOUT_S = 30.0
"""Longest that `nvidia-smi` may take, seconds: without a persistent driver it loads that first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Cores and GPUs to place processes on."""

    cores: tuple[int, ...]
    """Numbers of the cores that this process may use, rising."""
    gpus: tuple[str, ...] = ()
    """GPUs by the names that `CUDA_VISIBLE_DEVICES` takes."""


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(cores=tuple(sorted(os.sched_getaffinity(0))), gpus=visible(count_gpus(), os.environ))


def visible(count: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the `count` GPUs that this environment shows; as in CUDA, an impossible one hides the rest."""
    if VISIBLE_DEVICES not in environment or not count:
        return tuple(str(number) for number in range(count))
    names: list[str] = []
    for name in (entry.strip() for entry in environment[VISIBLE_DEVICES].split(",")):
        if not name or name.startswith("-") or (name.isdigit() and int(name) >= count):
            break
        names.append(name)
    return tuple(names)


def count_gpus() -> int:
    """The number of NVIDIA GPUs: of those that the driver lists or, where its tool is missing, of device files."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LIST_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return sum(DEVICE_FILE.fullmatch(path.name) is not None for path in Path("/dev").iterdir())
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
