"""Checks a machine for what a fleet needs: packages, GPU, disk, shared memory, open files, ports."""

import resource
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from minefleet.config import FleetConfig
from minefleet.core.errors import ConfigError
from minefleet.doctor.finding import Finding, Level
from minefleet.launch import ports
from minefleet.launch.machine import count_gpus

NEEDED = ("torch", "gymnasium", "numpy", "grpcio")
SMALL_SHM_BYTES = 2**30
FEW_FILES = 4096
ROOM_BYTES = 10 * 2**30
"""Disk that a run takes beside replay's store, generously: checkpoints, videos, logs."""


def check_machine(config: FleetConfig, directory: Path, shared_memory: Path) -> Iterator[Finding]:
    """Yields a finding for each; arguments as of `examine`."""
    yield _fleet()
    yield _gpu()
    yield _disk(config, directory)
    yield _shared_memory(shared_memory)
    yield _open_files()
    yield _ports(config)


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


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
