"""`exit_at_once` skips the interpreter's shutdown."""

import subprocess
import sys

ENDS = """import atexit, sys
from minefleet.core.immediate_process_exit import exit_at_once
atexit.register(print, "the last word")
sys.stdout = open(sys.argv[1], "w") if sys.argv[1:] else sys.stdout
print("a word")
exit_at_once(3)
"""


def test_exit_at_once_runs_what_atexit_holds() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "a word\nthe last word\n", "")


def test_exit_at_once_does_not_wait_for_an_exit_function_that_hangs() -> None:
    program = f"from minefleet.core import immediate_process_exit\nimmediate_process_exit.MAX_EXIT_S = 0.1\n{ENDS}"
    hangs = program.replace('print, "the last word"', "__import__('threading').Event().wait")
    done = subprocess.run([sys.executable, "-c", hangs], capture_output=True, text=True, check=False)
    assert done.returncode == 3


def test_exit_at_once_on_a_full_disk_keeps_the_exit_code() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, "/dev/full"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
