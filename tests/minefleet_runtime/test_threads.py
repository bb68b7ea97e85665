import subprocess
import sys

SCRIPT = """
import threading
from minefleet_runtime.process_setup import die_with_any_thread

die_with_any_thread()
dying = threading.Thread(target=lambda: 1 / 0, name="server")
dying.start()
threading.Event().wait()
"""


def test_role_ends_when_one_of_its_threads_dies() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "server died, and this role with it" in done.stderr
    assert "ZeroDivisionError" in done.stderr
