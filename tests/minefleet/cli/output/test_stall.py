"""`minefleet train` explains a run that makes no progress."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minefleet.cli.output.stall import REPEAT_S, STALL_S, Stall
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2
from minefleet_runtime.grpc_server.serve import serving
from minefleet_runtime.role_context import RoleContext

PAUSED, RUNNING, WAITING = map(status_service_pb2.State.Value, ("STATE_PAUSED", "STATE_RUNNING", "STATE_WAITING"))
FULL = "waiting for replay: its disk is full"


class Watched:
    """A `Stall` on a clock of its own, and what it said."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 0.0
        self.said: list[str] = []
        self._heard = threading.Event()
        self.stall = Stall(directory, self.said.append, lambda: self.now_s)

    def pass_by(self, seconds: float) -> None:
        """Lets time pass in which nothing is finished, and waits for the roles' answers."""
        self.now_s += seconds
        self.stall.tick(iterated=False)
        while self.stall.is_asking:
            self._heard.wait(0.01)
            self.stall.tick(iterated=False)


@pytest.fixture
def watched(run: Run) -> Iterator[Watched]:
    made = Watched(run.directory)
    yield made
    made.stall.close()


@contextmanager
def role_up(run: Run, state: status_service_pb2.State.ValueType, detail: str, name: str = "actor-0") -> Iterator[None]:
    role = status_service_pb2.ROLE_ACTOR if name.startswith("actor") else status_service_pb2.ROLE_LEARNER
    context = RoleContext(run=run, role=role, name=name, metrics_address="127.0.0.1:9")
    with serving(context, "127.0.0.1:0"):
        context.status.set_state(state, detail)
        yield


def test_stall_message_of_a_waiting_role_comes_once_and_again_after_a_while(run: Run, watched: Watched) -> None:
    with role_up(run, WAITING, FULL):
        watched.pass_by(STALL_S)
        watched.pass_by(STALL_S)
        assert watched.said == [f"no new iteration: actor-0: {FULL}"]
        watched.pass_by(REPEAT_S)
        assert len(watched.said) == 2


def test_stall_message_begins_with_the_learner_which_actors_wait_for(run: Run, watched: Watched) -> None:
    with role_up(run, PAUSED, "no newer weights"), role_up(run, PAUSED, "a collapse", "learner"):
        watched.pass_by(STALL_S)
    assert watched.said == ["no new iteration: learner: a collapse; actor-0: no newer weights"]


def test_a_role_that_does_not_answer_is_named(run: Run, watched: Watched) -> None:
    with role_up(run, RUNNING, ""):
        pass  # Its card stays, as after a kill.
    watched.pass_by(STALL_S)
    assert watched.said[0].startswith("no new iteration: actor-0: unreachable")


def test_stall_message_does_not_come_while_all_roles_run(run: Run, watched: Watched) -> None:
    with role_up(run, RUNNING, ""):
        watched.pass_by(STALL_S)
    assert watched.said == []


def test_stall_message_does_not_come_while_iterations_are_finished(run: Run, watched: Watched) -> None:
    with role_up(run, WAITING, FULL):
        for _ in range(3):
            watched.now_s += 0.9 * STALL_S
            watched.stall.tick(iterated=True)
            watched.pass_by(0.0)
    assert watched.said == []
