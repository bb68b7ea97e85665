import re
from pathlib import Path

import pytest
from tests.minefleet.cli.terminal import in_terminal

from minefleet.cli import main
from minefleet.runs.run_yaml import Run

ALTERNATE_SCREEN = ("\x1b[?1049h", "\x1b[?1049l")
"""Enters it and leaves it; then the terminal shows again what it showed before."""


def test_status_watched_refreshes_until_ctrl_c_and_leaves_the_terminal_as_it_was(run: Run, tmp_path: Path) -> None:
    shown = in_terminal(
        f"status --watch {run.directory}", tmp_path, [(b"no role is up", b"")] * 2 + [(b"no role is up", b"\x03")]
    )
    begin, end = map(shown.index, ALTERNATE_SCREEN)
    assert shown[begin:end].count("no role is up") > 1
    assert not re.sub("\x1b\\[[?0-9;]*[a-zA-Z]|\\^C|\\s", "", shown[:begin] + shown[end:])


def test_status_watched_without_a_terminal_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", str(run.directory)]) == 2
    assert "needs a terminal" in capsys.readouterr().err
