"""Measures this machine: cores, memory, disk and GPUs."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

GPU_FIELDS = "name,memory.total,memory.used,utilization.gpu"
GPU_TIMEOUT_S = 5.0


def machine_load(directory: Path) -> dict[str, Any]:
    """The machine since the last call; the disk is that of the directory."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(directory)
    return {
        "cores": psutil.cpu_count() or 1,
        "cpu_share": psutil.cpu_percent() / 100,
        "memory_bytes": memory.total,
        "memory_used_bytes": memory.total - memory.available,
        "disk_bytes": disk.total,
        "disk_free_bytes": disk.free,
        "gpus": _gpus(),
    }


def _gpus() -> list[dict[str, Any]]:
    """The GPUs that `nvidia-smi` lists; none where it is missing."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=False)
    return [_gpu(line.split(", ")) for line in done.stdout.splitlines()] if done.returncode == 0 else []


def _gpu(fields: list[str]) -> dict[str, Any]:
    name, total, used, share = fields
    use_share = float(share) / 100 if share.isdigit() else None
    mib = 2**20
    return {
        "name": name,
        "memory_bytes": int(total) * mib,
        "memory_used_bytes": int(used) * mib,
        "use_share": use_share,
    }
