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
    assert "starting roles" in shown and "env steps" in shown
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


def test_train_in_a_terminal_says_at_once_that_it_checks_and_leaves_only_the_summary_after_ctrl_c(
    tmp_path: Path,
) -> None:
    shown = in_terminal("train cartpole --run-dir run", tmp_path, [(b"KL", b"\x03")], code=130)
    first = [shown.index(text) for text in ("checking the environment", "training in", "starting roles", "KL")]
    assert first == sorted(first)
    end = shown[shown.rindex("KL") :]
    assert end.count("\x1b[2K") > 5  # The lines of the view are erased.
    assert "stopped by    signal" in end and "steps/s" not in end[end.index("stopped by") :]
