"""`minefleet set` on a run whose learner is this process, which answers by hand."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import COMMAND

from minefleet.config import EnvConfig, FleetConfig
from minefleet.core.schema import Schema
from minefleet.monitoring.journal import Line, append, read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import REFUSED, SET, unanswered
from minefleet.runs.run_yaml import Run

LR = "train_config.learning_rate"
Set = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(
        directory=tmp_path,
        config=FleetConfig(env=EnvConfig(id="CartPole-v1")),
        schema=Schema(obs={}, action={}),
        architecture="",
    )
    made.write()
    card = {"name": "learner", "role": "ROLE_LEARNER", "address": "127.0.0.1:1", "metrics_address": "127.0.0.1:2"}
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "learner.json").write_text(json.dumps(card | {"pid": os.getpid()}))
    return made


@pytest.fixture
def set_keys(run: Run) -> Iterator[Set]:
    started = list[subprocess.Popen[str]]()

    def start(*words: str) -> subprocess.Popen[str]:
        command = [*COMMAND, "set", str(run.directory), *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def request_of(run: Run) -> Line:
    """Waits for a request."""
    pause = threading.Event()
    while not (requests := unanswered(read_whole_journal(run.directory))):
        assert not pause.wait(0.05)
    return requests[0]


def test_set_prints_a_sentence_for_each_key_once_the_learner_has_answered(run: Run, set_keys: Set) -> None:
    process = set_keys(f"{LR}=1e-4", "train_config.entropy_schedule=[[0,1],[1,0]]", "--why", "too fast")
    request = request_of(run)
    assert request["set"] == {LR: 1e-4, "train_config.entropy_schedule": [[0, 1], [1, 0]]}
    assert request["why"] == "too fast"
    keys = [{"key": key, "old": None, "new": value} for key, value in request["set"].items()]
    append(run.directory, SET, {"iteration": 120}, id=request["id"], keys=keys)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out.splitlines() == [
        f"{LR}: null → 0.0001 from iteration 120 on",
        "train_config.entropy_schedule: null → [[0, 1], [1, 0]] from iteration 120 on",
    ]


def test_set_that_the_learner_refuses_ends_with_2_and_the_reason(run: Run, set_keys: Set) -> None:
    process = set_keys(f"{LR}=1e-4")
    append(run.directory, REFUSED, {}, id=request_of(run)["id"], reason="not today")
    assert process.communicate() == ("", "minefleet: not today\n")
    assert process.returncode == 2


def test_set_that_is_interrupted_says_that_the_request_stands(run: Run, set_keys: Set) -> None:
    process = set_keys(f"{LR}=1e-4")
    request_of(run)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert errors == "minefleet: the request stands; the learner answers it in the run's journal\n"
    assert len(unanswered(read_whole_journal(run.directory))) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{LR}=0"], "must be > 0, got 0.0"),
        (["train_config.lerning_rate=1"], "the nearest is train_config.learning_rate"),
        (["seed=3"], "seed cannot change while a run goes"),
        ([], "give the keys to change"),
        (["--lr", "3"], "write train_config.learning_rate=3"),
    ],
)
def test_set_refuses_what_it_can_check_and_asks_nobody(run: Run, set_keys: Set, words: list[str], said: str) -> None:
    process = set_keys(*words)
    out, errors = process.communicate()
    assert (process.returncode, out) == (2, "") and said in errors
    assert read_whole_journal(run.directory) == []


def test_set_where_no_learner_runs_says_that_it_holds_from_the_next_start(run: Run, set_keys: Set) -> None:
    (run.directory / "roles" / "learner.json").unlink()
    out, _ = (process := set_keys(f"{LR}=1e-4")).communicate()
    assert process.returncode == 0
    assert out == f"{LR}: 0.0001 from the next start on; no learner runs now\n"
    assert request_of(run)["set"] == {LR: 1e-4}
