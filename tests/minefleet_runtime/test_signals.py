"""How a role hears that it shall stop, whichever thread the kernel gives the signal to."""

import signal
import subprocess
import sys

import pytest

TO_ANOTHER_THREAD = """
import signal, sys, threading
from minefleet_runtime.signals import stop_on_signal

stopping, other = threading.Event(), threading.Event()
stop_on_signal(stopping)
thread = threading.Thread(target=other.wait, daemon=True)
thread.start()
threading.Timer(0.1, signal.pthread_kill, (thread.ident, int(sys.argv[1]))).start()
stopping.wait()
other.set()
print("stopped")
"""
TWICE = """
import os, sys, threading
from minefleet_runtime.signals import stop_on_signal

stopping = threading.Event()
stop_on_signal(stopping)
os.kill(os.getpid(), int(sys.argv[1]))
stopping.wait()
os.kill(os.getpid(), int(sys.argv[1]))
threading.Event().wait()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_is_heard_by_a_main_thread_that_waits(signum: signal.Signals) -> None:
    command = [sys.executable, "-c", TO_ANOTHER_THREAD, str(int(signum))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "stopped\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(signum: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", TWICE, str(int(signum))], check=False, timeout=60)
    assert done.returncode == -signum
