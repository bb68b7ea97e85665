"""Processor time, of this machine and of real processes."""

import os
import subprocess
import sys

from minefleet_runtime.cpu_time import busy_seconds, family_seconds

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"
NEST = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True)\ninput()"


def test_busy_seconds_grow_by_the_time_that_a_core_was_busy() -> None:
    before = busy_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert before + 0.3 <= busy_seconds()


def test_a_process_is_counted_with_what_it_has_started_and_what_has_ended_of_that() -> None:
    with subprocess.Popen([sys.executable, "-c", NEST], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert family_seconds(process.pid) >= 0.3  # The kernel rounds each of four sums down to a tick.
        assert family_seconds(os.getpid()) >= family_seconds(process.pid)
        process.kill()
    assert family_seconds(process.pid) == 0.0
