"""Processes that a fork server makes: what they are given, whose children they are, and what becomes of them."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from minefleet.config.load import load
from minefleet.core.child_process_answers import ask
from minefleet.core.child_process_start import PYTHON, Process
from minefleet.core.errors import ConfigError
from minefleet.core.parent_death import tied
from minefleet.launch.fork_server import ForkedProcess, ForkServer
from minefleet.runs.run_yaml import to_dict

END_S = 60.0
"""By which the kernel has ended what is tied to a dead process."""
TALK = """import os, sys, threading
import numpy
from minefleet.core.parent_death import die_with_launcher
die_with_launcher()
print(os.getppid(), sys.argv[1:], os.environ.get("WORD"))
print(sorted(os.sched_getaffinity(0)), os.getpgid(0) == os.getpid(), "torch" in sys.modules)
print(numpy.random.randint(1 << 62))
print(open("/proc/self/cmdline").read().replace(chr(0), " "), file=sys.stderr)
if "wait" in sys.argv: sys.stdin.read() or threading.Event().wait()
sys.exit(7)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    directory = tmp_path_factory.mktemp("talk")
    (directory / "talk.py").write_text(TALK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]))
        with closing(ForkServer()) as made:
            yield made


def talk(server: ForkServer, log: Path, *arguments: str, core: int | None = None) -> list[str]:
    command = [*PYTHON, "talk", *arguments]

    def arrange(pid: int) -> None:
        if core is not None:
            os.sched_setaffinity(pid, [core])

    with log.open("wb") as output:
        process = server.start(command, {**os.environ, **tied(), "WORD": "ours"}, output.fileno(), arrange=arrange)
    assert process.wait() == 7
    return log.read_text().splitlines()


def test_a_forked_process_is_like_one_that_was_started_afresh(server: ForkServer, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    said = talk(server, tmp_path / "log", "one", "two words", core=core)
    assert f"{os.getpid()} ['one', 'two words'] ours" in said
    assert any(line.startswith(f"[{core}] True True") for line in said)
    assert any(line.startswith(f"{sys.executable} -P -m talk one two words") for line in said)


def test_fork_server_with_all_imported_has_one_thread(server: ForkServer, tmp_path: Path) -> None:
    for name in ("a", "b"):  # Between the two it imports what is left.
        talk(server, tmp_path / name)
    assert len([*Path(f"/proc/{server._process.pid}/task").iterdir()]) == 1


def test_start_of_another_program_starts_it_afresh(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as output:
        process = server.start(["/bin/echo", "hello"], {}, output.fileno())
    assert process.wait() == 0 and not isinstance(process, ForkedProcess)
    assert (tmp_path / "log").read_text() == "hello\n"


def test_forked_processes_draw_different_numbers(server: ForkServer, tmp_path: Path) -> None:
    assert talk(server, tmp_path / "a") != talk(server, tmp_path / "b")


def test_forked_processes_die_with_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK)
    launcher = """import os, sys
from minefleet.core.parent_death import tied
from minefleet.core.child_process_start import PYTHON
from minefleet.launch.fork_server import ForkServer
server = ForkServer()
process = server.start([*PYTHON, "talk", "wait"], {**os.environ, **tied()}, 2)
print(process.pid, server._process.pid, flush=True)
sys.stdin.read()
"""
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = ["env", f"PYTHONPATH={path}", sys.executable, "-c", launcher]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in started.stdout.readline().split()]
        started.kill()
    for handle in handles:
        assert select.select([handle], [], [], END_S)[0], "it has outlived the launcher"
        os.close(handle)


def test_ask_with_the_fork_server_is_answered_by_a_forked_process(server: ForkServer) -> None:
    processes = []

    def start(*arguments: Any, **options: Any) -> Process:
        processes.append(server.start(*arguments, **options))
        return processes[-1]

    with pytest.raises(ConfigError, match="No module named 'nowhere'"):
        ask("minefleet_learner.trainer_loader", "nowhere:Trainer", start=start)
    assert ask("minefleet_learner.trainer_loader", "PPOTrainer", start=start) == {"trainer": "PPOTrainer"}
    assert [type(process) for process in processes] == [ForkedProcess, ForkedProcess]


def test_start_of_an_imported_module_runs_it_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning:runpy")
    with closing(ForkServer()) as server:
        assert ask("minefleet.launch.env_policy_check", json.dumps(to_dict(load("cartpole"))), start=server.start) == {}


def test_a_dead_fork_server_harms_nothing_that_it_forked_and_others_start_afresh(
    server: ForkServer, tmp_path: Path
) -> None:
    """Comes last: the other tests need the server."""
    with (tmp_path / "log").open("wb") as output:
        waiting = server.start([*PYTHON, "talk", "wait"], {**os.environ, **tied()}, output.fileno())
    server._process.kill()
    server._process.wait()
    said = talk(server, tmp_path / "fresh")
    assert any(line.startswith(str(os.getpid())) for line in said)
    assert any(line.endswith(" True False") for line in said), "torch is not there"
    assert os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it lives"
    os.kill(waiting.pid, signal.SIGKILL)
    assert waiting.wait() == -signal.SIGKILL
