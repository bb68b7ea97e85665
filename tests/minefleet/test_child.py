"""What a child leaves for its parent to read."""

import io
import subprocess
import sys

import pytest

from minefleet.child import read_answer, read_last_line

ENDS = """import atexit, sys
from minefleet.child import exit_at_once
atexit.register(print, "the last word")
sys.stdout = open(sys.argv[1], "w") if sys.argv[1:] else sys.stdout
print("a word")
exit_at_once(3)
"""


@pytest.mark.parametrize(("written", "answer"), [(b'{"a": 1}', {"a": 1}), (b"", {}), (b'{"a": ', {}), (b"\xff", {})])
def test_an_answer_that_was_cut_short_is_none(written: bytes, answer: dict[str, int]) -> None:
    assert read_answer(io.BytesIO(written)) == answer


@pytest.mark.parametrize(("printed", "line"), [(b"a\nb\n\n", "b"), (b"", "it said nothing"), (b"\xff\n", "\ufffd")])
def test_the_last_line_says_why(printed: bytes, line: str) -> None:
    assert read_last_line(io.BytesIO(printed)) == line


def test_who_ends_at_once_still_does_what_was_registered_for_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a word\nthe last word\n", "")


def test_a_full_disk_changes_no_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, "/dev/full"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
