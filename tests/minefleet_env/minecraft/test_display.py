"""A display for engines: where it comes from, and that there is none without it."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from minefleet_env.errors import RefusedError
from minefleet_env.minecraft.display import provide_display

XVFB = """#!/bin/sh
echo $$ > {pid}
{does}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found, besides a shell's own. No display is set."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", "")
    return tmp_path


def install(path: Path, does: str) -> Path:
    """Puts an Xvfb there; returns the file for its process id."""
    (path / "Xvfb").write_text(XVFB.format(pid=path / "pid", does=does))
    (path / "Xvfb").chmod(0o755)
    return path / "pid"


def test_a_display_is_started_once_and_named(path: Path) -> None:
    pid = install(path, 'echo 42 > /dev/fd/"$2"; exec /bin/sleep 60')
    provide_display()
    assert os.environ["DISPLAY"] == ":42"
    server = psutil.Process(int(pid.read_text()))
    pid.unlink()
    provide_display()
    assert not pid.exists()
    server.kill()
    server.wait()


def test_a_display_that_has_died_is_replaced(path: Path) -> None:
    pid = install(path, 'echo 43 > /dev/fd/"$2"; exec /bin/sleep 60')
    provide_display()
    os.kill(int(pid.read_text()), signal.SIGKILL)
    os.waitid(os.P_PID, int(pid.read_text()), os.WEXITED | os.WNOWAIT)
    install(path, 'echo 44 > /dev/fd/"$2"; exec /bin/sleep 60')
    provide_display()
    assert os.environ["DISPLAY"] == ":44"
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_display_that_is_set_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    provide_display()
    assert os.environ["DISPLAY"] == ":7"


def test_display_without_xvfb_is_refused_with_what_to_install(path: Path) -> None:
    with pytest.raises(RefusedError, match="DISPLAY is not set and Xvfb is not installed; install it"):
        provide_display()


def test_an_xvfb_that_ends_at_once_is_reported(path: Path) -> None:
    install(path, "exit 1")
    with pytest.raises(RefusedError, match="did not start"):
        provide_display()
    assert not os.environ["DISPLAY"]
