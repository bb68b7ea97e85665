"""A role stops on a signal, whichever thread the kernel gives it to."""

import signal
import subprocess
import sys

import pytest

TO_ANOTHER_THREAD = """
import signal, sys, threading
from minefleet_runtime.process_setup import stop_on_signal

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
import signal, sys, threading, time
from minefleet.core.termination_signal_set import ONE_REQUEST_S
from minefleet_runtime.process_setup import stop_on_signal

stopping, signum = threading.Event(), int(sys.argv[1])
stop_on_signal(stopping)
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
told = {"main": threading.main_thread(), "another": thread}[sys.argv[2]]

def tell():
    signal.pthread_kill(told.ident, signum)
    stopping.wait()
    time.sleep(2 * ONE_REQUEST_S)
    signal.pthread_kill(told.ident, signum)

threading.Thread(target=tell, daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_is_heard_by_a_main_thread_that_waits(signum: signal.Signals) -> None:
    command = [sys.executable, "-c", TO_ANOTHER_THREAD, str(int(signum))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "stopped\n"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("thread", ["main", "another"])
def test_the_second_signal_ends_the_process_at_once_whichever_thread_gets_it(
    signum: signal.Signals, thread: str
) -> None:
    done = subprocess.run([sys.executable, "-c", TWICE, str(int(signum)), thread], check=False, timeout=60)
    assert done.returncode == 128 + signum
