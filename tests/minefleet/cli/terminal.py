"""A terminal in which `minefleet` runs, and somebody types."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path


def in_terminal(arguments: str, directory: Path, answers: Sequence[tuple[bytes, bytes]], code: int = 0) -> str:
    """Runs `minefleet` in a terminal of 80 columns and returns all it shows; a text is answered once it is shown.

    Args:
        arguments: Of the command line.
        directory: Where it is typed.
        answers: Texts, and what is typed once each is shown after the one before.
        code: The exit code that is expected.
    """
    shown, read, left = b"", 0, list(answers)
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    # Its session has the terminal, so that what is typed there as Ctrl-C becomes a signal.
    command = ["setsid", "--ctty", sys.executable, "-m", "minefleet", *arguments.split()]
    process = subprocess.Popen(command, cwd=directory, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    while data := read_some(screen):
        shown += data
        if left and left[0][0] in shown[read:]:
            os.write(screen, left.pop(0)[1])
            read = len(shown)
    os.close(screen)
    assert process.wait() == code, shown.decode()
    assert not left
    return shown.decode()


def read_some(screen: int) -> bytes:
    """The next output; empty once no process has the terminal."""
    try:
        return os.read(screen, 65536)
    except OSError:
        return b""
