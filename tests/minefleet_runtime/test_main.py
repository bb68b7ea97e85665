import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minefleet.core.termination_signal_set import ONE_REQUEST_S
from minefleet.runs.run_yaml import Run

STAND_IN = Path(__file__).with_name("stand_in_role.py")
TIMEOUT_S = 60.0
Role = subprocess.Popen[str]


@pytest.fixture
def start(run: Run) -> Iterator[Callable[..., Role]]:
    """Starts stand-in roles on a run, and leaves none behind."""
    run.write()
    roles: list[Role] = []

    def start_role(what: str, directory: Path = run.directory) -> Role:
        command = [sys.executable, str(STAND_IN), "--run-dir", str(directory), what]
        roles.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return roles[-1]

    yield start_role
    for role in roles:
        role.kill()
        role.communicate()


def wait_until_up(run: Run) -> None:
    """Blocks until the role writes into the FIFO."""
    assert (run.directory / "fifo").read_text() == "up"


@pytest.fixture
def fifo(run: Run) -> None:
    os.mkfifo(run.directory / "fifo")


def end_of(role: Role) -> tuple[int, str]:
    """Exit code and log."""
    _, log = role.communicate(timeout=TIMEOUT_S)
    return role.returncode, log


@pytest.mark.parametrize(
    ("what", "code", "line"),
    [
        ("config", 2, "discount must lie in [0, 1], got 2"),
        ("fleet", 1, " ERROR   replay minefleet_runtime.main: replay has gone"),
        ("stopped", 0, "stopped while waiting for replay"),
    ],
)
def test_a_role_that_ends_on_purpose_says_why_in_one_line(
    start: Callable[..., Role], what: str, code: int, line: str
) -> None:
    returncode, log = end_of(start(what))
    assert returncode == code
    assert log.splitlines()[0].endswith(line)
    assert "Traceback" not in log


def test_role_that_fails_by_a_bug_logs_its_traceback(start: Callable[..., Role]) -> None:
    code, log = end_of(start("bug"))
    assert code == 1
    assert "Traceback" in log and "TypeError" in log


def test_users_error_before_the_first_iteration_gives_up_and_ends_the_log_with_the_users_line(
    start: Callable[..., Role], run: Run, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text("import json\n\ndef train():\n    json.loads('{')  # mine\n")
    code, log = end_of(start(f"{own}:train"))
    assert code == 3
    assert "Traceback" in log
    place, source, reason = log.splitlines()[-3:]
    assert place.endswith(f"{own}:4, in train") and " ERROR " in place
    assert source == "    json.loads('{')  # mine"
    assert reason.startswith("json.decoder.JSONDecodeError: Expecting property name")
    run.metrics.write_text('{"iteration": 1}\n')
    again, log = end_of(start(f"{own}:train"))
    assert again == 1
    assert log.splitlines()[-2:] == [source, reason]


def test_a_directory_without_a_run_is_a_config_error(start: Callable[..., Role], tmp_path: Path) -> None:
    code, log = end_of(start("serve", tmp_path / "nowhere"))
    assert code == 2
    assert "there is no run in" in log and "Traceback" not in log


@pytest.mark.usefixtures("fifo")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_role_and_it_ends_well(start: Callable[..., Role], run: Run, signum: int) -> None:
    role = start("serve")
    wait_until_up(run)
    assert (run.directory / "roles" / "replay.json").exists()
    role.send_signal(signum)
    code, log = end_of(role)
    assert code == 0
    assert "replay has drained" in log
    assert not (run.directory / "roles" / "replay.json").exists()


@pytest.mark.usefixtures("fifo")
def test_the_second_signal_ends_a_role_that_does_not_stop(start: Callable[..., Role], run: Run) -> None:
    role = start("stubborn")
    wait_until_up(run)
    role.send_signal(signal.SIGTERM)
    assert role.stderr is not None
    assert any("asked to stop by SIGTERM" in line for line in role.stderr)
    for _ in range(3):
        role.send_signal(signal.SIGTERM)  # As one with the first.
    with pytest.raises(subprocess.TimeoutExpired):
        role.wait(2 * ONE_REQUEST_S)
    role.send_signal(signal.SIGTERM)
    assert role.wait(TIMEOUT_S) == 128 + signal.SIGTERM


def test_role_help_needs_no_run() -> None:
    done = subprocess.run([sys.executable, str(STAND_IN), "--help"], capture_output=True, text=True, check=True)
    assert "python -m minefleet_replay" in done.stdout and "--run-dir" in done.stdout
