"""MineRL, and its engines.

They are started without MineRL's watcher, a daemon per engine: whatever has become of an environment process, its guard
ends what it has started.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from minefleet_env.errors import RefusedError
from minefleet_env.minecraft.engine_start_error import ended_at_start

GUIDE = "docs/minecraft.md says how to install it"
VERSION = "1."
LAUNCHER = "launchClient.sh"
LOG_FOLDER = "MALMO_MINECRAFT_OUTPUT_LOGDIR"
"""MineRL's own variable: the folder for the engines' output, below which it makes `logs`."""


def import_minerl() -> Any:
    """Imports MineRL, which registers its environments; returns its gym.

    Raises:
        RefusedError: If it is missing, or another Minecraft.
    """
    try:
        version = metadata.version("minerl")
        importlib.import_module("minerl")
    except ImportError as error:
        raise RefusedError(
            f"{sys.executable} has no MineRL ({error}): name one that has it by env.python; {GUIDE}"
        ) from error
    if not version.startswith(VERSION):
        raise RefusedError(f"{sys.executable} has MineRL {version}, which is another Minecraft than 1.0's; {GUIDE}")
    return importlib.import_module("gym")


def launched() -> Any:
    """Starts an engine, and waits until it is ready.

    Raises:
        RefusedError: If there is none.
        EnvError: If it ends at its start; has the end of its log.
    """
    malmo = importlib.import_module("minerl.env.malmo")
    launcher = Path(malmo.InstanceManager.MINECRAFT_DIR) / LAUNCHER
    if not launcher.is_file():
        raise RefusedError(f"MineRL's engine is not built: there is no {launcher.resolve()}; {GUIDE}")
    os.environ.setdefault(LOG_FOLDER, str(Path(tempfile.gettempdir()) / f"minerl-{os.getuid()}"))
    instance = malmo.InstanceManager.get_instance(os.getpid())
    try:
        # To MineRL, an engine that is a daemon needs no watcher; one that is not replaceable stays dead.
        instance.launch(daemonize=True, replaceable=False)
    except BaseException as error:
        kill(instance)
        if not isinstance(error, EOFError):
            raise
        raise ended_at_start(error) from error
    instance.had_to_clean = False
    return instance


def kill(instance: Any) -> None:
    """Ends an engine with its group, of which MineRL makes it the leader, and has MineRL forget it."""
    instance.running = False
    manager = importlib.import_module("minerl.env.malmo").InstanceManager
    with contextlib.suppress(ValueError):
        manager._instance_pool.remove(instance)
    process = instance.minecraft_process
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
