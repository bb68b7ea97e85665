"""Runs the tools of the services in child processes: they read what a stopped service keeps."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any, TypeAlias

from minefleet.core.child_process_start import PYTHON
from minefleet.runs.run_yaml import Run

Report: TypeAlias = dict[str, Any]


def run_service_tool(module: str, run: Run, tool: str, options: Sequence[str]) -> tuple[Report, int]:
    """Runs a tool. Returns what it found and its exit code; with nothing found, ends this process with that code."""
    command = [*PYTHON, module, tool, "--run-dir", str(run.directory), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout), done.returncode
