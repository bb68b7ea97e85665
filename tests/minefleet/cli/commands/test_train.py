"""`minefleet train` in a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.minefleet.cli.terminal import in_terminal

STOPS = """
import sys
import gymnasium

def make():
    if sys.stdin.isatty():
        breakpoint()
    return gymnasium.make("CartPole-v1")
"""


def test_train_serial_shows_progress_and_leaves_the_terminal_to_a_debugger(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(STOPS)
    settings = "env.generator=stops.py:make rollout_config.worker_config.num_envs=1 train_config.num_iterations=2"
    shown = in_terminal(f"train --serial --run-dir run {settings}", tmp_path, [(b"(Pdb) ", b"p 6 * 7\ncontinue\n")])
    assert "42" in shown
    assert "waiting for" in shown and "env steps" in shown
    assert "minefleet_runtime" not in shown
    assert "learner ends" in (tmp_path / "run" / "logs" / "serial.log").read_text()


def test_train_serial_that_fails_quotes_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(STOPS.replace("breakpoint()", "raise RuntimeError('no such world')"))
    command = [sys.executable, "-m", "minefleet", "train", "env.generator=fails.py:make", "--serial"]
    screen, terminal = pty.openpty()
    done = subprocess.run(command, cwd=tmp_path, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(screen)
    os.close(terminal)
    assert done.returncode == 1
    assert 'fails.py", line 7, in make' in done.stderr and "no such world" in done.stderr
