"""Processor time, from texts of the kernel and of real processes."""

import os
import subprocess
import sys

from minefleet_runtime.processor import TICKS_PER_S, CoreTime, core_time, family_seconds, own_cores

STAT = """cpu  30 0 30 300 60 0 0 0 0 0
cpu0 10 0 20 60 10 0 0 0 5 0
cpu1 20 0 10 240 50 0 0 0 0 0
intr 5
"""
BURN = "import time\nwhile time.process_time() < 0.4: pass\n"
NEST = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True)\ninput()"


def test_only_the_cores_that_may_be_used_count_and_waiting_for_disks_is_idle() -> None:
    assert core_time(STAT, frozenset({0})) == CoreTime(30 / TICKS_PER_S, 100 / TICKS_PER_S)
    assert core_time(STAT, frozenset({0, 1})) == CoreTime(60 / TICKS_PER_S, 420 / TICKS_PER_S)


def test_this_machine_can_be_read() -> None:
    assert 0 < own_cores().busy_s <= own_cores().total_s


def test_a_process_is_counted_with_what_it_has_started_and_what_has_ended_of_that() -> None:
    with subprocess.Popen([sys.executable, "-c", NEST], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert family_seconds(process.pid) >= 0.3  # The kernel rounds each of four sums down to a tick.
        assert family_seconds(os.getpid()) >= family_seconds(process.pid)
        process.kill()
    assert family_seconds(process.pid) == 0.0
