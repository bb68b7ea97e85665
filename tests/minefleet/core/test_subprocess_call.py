"""A child process leaves an answer for its parent."""

import io
import subprocess
import sys

import pytest

from minefleet.core.subprocess_call import read_answer, read_last_line

ENDS = """import atexit, sys
from minefleet.core.subprocess_call import exit_at_once
atexit.register(print, "the last word")
sys.stdout = open(sys.argv[1], "w") if sys.argv[1:] else sys.stdout
print("a word")
exit_at_once(3)
"""


@pytest.mark.parametrize(("written", "answer"), [(b'{"a": 1}', {"a": 1}), (b"", {}), (b'{"a": ', {}), (b"\xff", {})])
def test_read_answer_of_a_child_that_died_over_it_is_empty(written: bytes, answer: dict[str, int]) -> None:
    assert read_answer(io.BytesIO(written)) == answer


@pytest.mark.parametrize(("printed", "line"), [(b"a\nb\n\n", "b"), (b"", "it said nothing"), (b"\xff\n", "\ufffd")])
def test_read_last_line_skips_what_is_blank(printed: bytes, line: str) -> None:
    assert read_last_line(io.BytesIO(printed)) == line


def test_exit_at_once_runs_what_atexit_holds() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a word\nthe last word\n", "")


def test_exit_at_once_does_not_wait_for_an_exit_function_that_hangs() -> None:
    program = f"from minefleet.core import subprocess_call\nsubprocess_call.MAX_EXIT_S = 0.1\n{ENDS}"
    hangs = program.replace('print, "the last word"', "__import__('threading').Event().wait")
    done = subprocess.run([sys.executable, "-c", hangs], capture_output=True, text=True, check=False)
    assert done.returncode == 3


def test_exit_at_once_on_a_full_disk_keeps_the_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, "/dev/full"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
