"""Keeps a run's replay, parameters and actors alive.

    python -m minefleet.launch.rollout_manager_process --run-dir DIR

`minefleet.online` starts it, `RolloutManager` stops it. It holds the run's directory through a lock that it inherits.
Where its launcher ties it to itself, it is killed when that dies; its roles are always killed when it dies.
"""

import argparse
import logging
import os
import sys
import threading
from contextlib import closing
from pathlib import Path

from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import EXIT_CONFIG, EXIT_FAILED, ConfigError
from minefleet.core.parent_death import die_with_launcher, tied
from minefleet.launch.fork_server import ForkServer
from minefleet.launch.role_supervisor import WITHOUT_LEARNER, supervisor
from minefleet.launch.rollout_manager_handle import PID_FILE, RolloutManager, rollout_command
from minefleet.runs.run_yaml import Run, read_run

logger = logging.getLogger(__name__)

LOG = "rollout.log"


def start(run: Run, *, outlives_us: bool, descriptor: int) -> RolloutManager:
    """Starts it in a session of its own.

    Args:
        run: What to keep alive.
        outlives_us: Whether it stays when this process dies; otherwise this is called by the main thread.
        descriptor: From `hold`; it is inherited, and closed here.

    Raises:
        ConfigError: If another thread calls this although it shall be tied.
    """
    if not outlives_us and threading.current_thread() is not threading.main_thread():
        raise ConfigError("call this from the main thread, or set detach_rollout_manager: who ties may not end earlier")
    log = (os.POSIX_SPAWN_OPEN, 1, str(run.logs / LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.set_inheritable(descriptor, True)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, *rollout_command(run.directory)],
            {**os.environ, **({} if outlives_us else tied())},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
        )
    finally:
        os.close(descriptor)
    write_whole(run.directory / PID_FILE, f"{pid}\n")
    return RolloutManager(run)


def main() -> int:
    """Keeps the roles alive; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m minefleet.launch.rollout_manager_process")
    parser.add_argument("--run-dir", type=Path, required=True)
    run = read_run(parser.parse_args().run_dir)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)-7s rollout: %(message)s")
    with closing(ForkServer()) as forks:
        ending = supervisor(run, logger.info, stages=WITHOUT_LEARNER, start=forks.start).run()
    (run.directory / PID_FILE).unlink(missing_ok=True)
    if ending.stopped_by != "failure":
        return 0
    logger.error("%s", ending.reason)
    return EXIT_CONFIG if ending.is_config_error else EXIT_FAILED


if __name__ == "__main__":
    die_with_launcher()
    sys.exit(main())
