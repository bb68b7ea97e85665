"""A learner with `--stay` whose run is over waits; one that has more to train trains."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import COMMAND, Fleet
from tests.minefleet.runs.test_checkpoint_files import make
from tests.role_process import TIMEOUT_S, RoleProcess, wait_for

from minefleet.config import StopConfig
from minefleet.config.load import load
from minefleet.core.schema import Schema
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import answers_in, ask
from minefleet.runs.checkpoint_files import write
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run
from minefleet_learner.__main__ import ending_of


@contextmanager
def staying(directory: Path) -> Iterator[RoleProcess]:
    """`minefleet serve learner --stay`; ends with 0 when asked to."""
    run = read_run(directory)
    probes = RoleProcess("minefleet_learner", directory, run.config.services.learner.metrics_address)
    command = [*COMMAND, "serve", "learner", "--run-dir", str(directory), "--stay"]
    with (directory / "logs" / "stay.log").open("ab") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_for(lambda: answers(probes) or process.poll() is not None)
            yield probes
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def answers(probes: RoleProcess) -> bool:
    try:
        return bool(probes.get("/healthz")[0] == 200)
    except OSError:
        return False


@pytest.mark.fleet
def test_learner_stays_where_its_run_is_over_and_trains_once_a_key_has_changed(train: Callable[..., Fleet]) -> None:
    fleet = train("cartpole", "stop.env_steps=600", "train_config.learning_rate=1e-4")
    fleet.finish()
    result = (fleet.directory / "result.json").read_text()
    with staying(fleet.directory) as learner:
        wait_for(lambda: learner.get("/readyz") == (200, "paused: the run is over: env_steps\n"))
    assert (fleet.directory / "result.json").read_text() == result
    with staying(fleet.directory) as learner:
        request = ask(fleet.directory, rollback="0")
        wait_for(lambda: request in answers_in(read_whole_journal(fleet.directory)))
        wait_for(lambda: learner.get("/readyz")[1].startswith("waiting: "))
    run = read_run(fleet.directory)
    replace(run, config=replace(run.config, stop=StopConfig(env_steps=800))).write()
    with staying(fleet.directory) as learner:
        wait_for(lambda: learner.get("/readyz")[1].startswith("waiting: "))


def test_only_a_condition_of_its_own_ends_a_run(tmp_path: Path) -> None:
    run = Run(directory=tmp_path, config=load("CartPole-v1"), schema=Schema(obs={}, action={}), architecture="a")
    run.write()
    assert ending_of(run) == ""
    for stopped_by, ending in (("", ""), ("signal", ""), ("env_steps", "env_steps"), ("trainer", "trainer")):
        made = make()
        text = (tmp_path / RUN_FILE).read_text()
        write(run.checkpoints, replace(made, state=replace(made.state, stopped_by=stopped_by), run=text))
        assert ending_of(run) == ending
