"""Rollbacks in the journal: requests, answers, what a start does about them, and what snapshots say of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.minefleet.monitoring.test_journal import make_run
from tests.minefleet.runs.test_checkpoint_rollback import save
from tests.object_stores import object_store

from minefleet.core.errors import ConfigError
from minefleet.monitoring.journal import append, read_whole_journal, record_start
from minefleet.monitoring.learner_requests_in_journal import answers_in, ask
from minefleet.monitoring.rollback_requests import answer_rollback, open_rollback, settle_rollbacks, undone_versions
from minefleet.runs.checkpoint_files import newest, read_state
from minefleet.runs.remote_snapshot_store import SnapshotStore
from minefleet.runs.run_yaml import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that a learner has begun, with checkpoints of four iterations."""
    made = make_run(tmp_path)
    record_start(made, read_state(save(made.checkpoints, 0)), "first")
    for iteration in (10, 20, 30):
        save(made.checkpoints, iteration)
    return made


def events(run: Run) -> list[str]:
    return [line["event"] for line in read_whole_journal(run.directory)]


def answer_to(run: Run, request: str) -> dict[str, Any]:
    return answers_in(read_whole_journal(run.directory))[request]


def iteration(run: Run) -> int:
    return read_state(newest(run.checkpoints) or run.checkpoints).iteration


def test_settle_rollbacks_does_what_was_asked_while_no_learner_went(run: Run) -> None:
    request = ask(run.directory, "it collapsed", rollback="21")
    settle_rollbacks(run)
    line = answer_to(run, request)
    assert {key: line[key] for key in ("event", "iteration", "version", "checkpoint", "left", "why")} == {
        "event": "rollback",
        "iteration": 20,
        "version": 21,
        "checkpoint": "00000020",
        "left": [30, 31],
        "why": "it collapsed",
    }
    assert iteration(run) == 20
    assert [list(span) for span in undone_versions(read_whole_journal(run.directory))] == [list(range(22, 32))]


def test_settle_rollbacks_without_a_request_changes_nothing(run: Run) -> None:
    before = read_whole_journal(run.directory)
    ask(run.directory, set={"train_config.learning_rate": 1e-4})
    settle_rollbacks(run)
    assert read_whole_journal(run.directory)[:-1] == before
    assert iteration(run) == 30


def test_rollback_that_is_decided_and_not_done_is_done_at_every_start_until_a_learner_has_started(run: Run) -> None:
    left = read_state(newest(run.checkpoints) or run.checkpoints)
    request = ask(run.directory, rollback="best")
    answer_rollback(run, {"id": request, "rollback": "best"}, left, "first")
    for _ in range(2):
        assert open_rollback(read_whole_journal(run.directory)) == answer_to(run, request)
        settle_rollbacks(run)
        assert iteration(run) == 20
    record_start(run, read_state(run.checkpoints / "00000020"), "second")
    save(run.checkpoints, 30)
    settle_rollbacks(run)
    assert iteration(run) == 30


def test_settle_rollbacks_refuses_what_is_not_kept_with_the_list_of_what_is(run: Run) -> None:
    request = ask(run.directory, rollback="99")
    settle_rollbacks(run)
    assert answer_to(run, request)["event"] == "refused"
    assert "there are those of version 1 (iteration 0), 11 (iteration 10)" in answer_to(run, request)["reason"]
    assert iteration(run) == 30


def test_settle_rollbacks_refuses_a_damaged_checkpoint(run: Run) -> None:
    (run.checkpoints / "00000010" / "policy.safetensors").write_bytes(b"rot")
    request = ask(run.directory, rollback="10")
    settle_rollbacks(run)
    assert "is 10; there are those of version 1 (iteration 0), 21 " in answer_to(run, request)["reason"]
    assert iteration(run) == 30


def test_settle_rollbacks_answers_each_request_once_and_one_step_goes_back_from_what_is_left(run: Run) -> None:
    ask(run.directory, rollback="previous")
    settle_rollbacks(run)
    ask(run.directory, rollback="previous")
    settle_rollbacks(run)
    assert iteration(run) == 10
    assert events(run) == ["resume", "request", "rollback", "request", "rollback"]


def test_rollback_line_of_a_learner_that_another_has_replaced_counts_for_nothing(run: Run) -> None:
    request = ask(run.directory, rollback="10")
    record_start(run, read_state(newest(run.checkpoints) or run.checkpoints), "second")
    append(run.directory, "rollback", {"iteration": 10}, id=request, learner="first", checkpoint="00000010")
    assert open_rollback(read_whole_journal(run.directory)) is None
    settle_rollbacks(run)
    assert answer_to(run, request)["learner"] == "second"


def test_open_rollback_to_a_checkpoint_that_is_gone_stops_the_start(run: Run) -> None:
    append(run.directory, "rollback", {"iteration": 7}, id="x", learner="first", checkpoint="00000007")
    with pytest.raises(ConfigError, match="00000007 does not exist"):
        settle_rollbacks(run)


def test_snapshots_before_while_and_after_a_rollback_go_on_from_its_checkpoint(run: Run, tmp_path: Path) -> None:
    with object_store("file", tmp_path / "store") as store:

        def upload(name: str) -> Run:
            SnapshotStore(store.target).upload(run)
            SnapshotStore(store.target).restore(tmp_path / name)
            restored = replace(run, directory=tmp_path / name)
            assert read_whole_journal(restored.directory) == read_whole_journal(run.directory)
            settle_rollbacks(restored)
            return restored

        assert iteration(upload("never")) == 30
        ask(run.directory, rollback="10")
        assert iteration(upload("asked")) == 10
        left = read_state(newest(run.checkpoints) or run.checkpoints)
        answer_rollback(run, read_whole_journal(run.directory)[-1], left, "first")
        assert iteration(upload("open")) == 10
        settle_rollbacks(run)
        record_start(run, read_state(run.checkpoints / "00000010"), "second")
        assert {path.name for path in upload("started").checkpoints.iterdir()} == {"00000000", "00000010", "latest"}


def test_snapshot_that_a_rollback_overtakes_does_not_say_that_it_is_done(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_store("file", tmp_path / "store") as store:
        uploads = SnapshotStore(store.target)
        write_object = uploads._fs.pipe_file

        def write_and_roll_back(path: str, data: bytes) -> None:
            write_object(path, data)
            if b'"iteration": 20' in data and iteration(run) == 30:  # The newest checkpoint is sent by now.
                ask(run.directory, rollback="20")
                settle_rollbacks(run)
                record_start(run, read_state(run.checkpoints / "00000020"), "second")

        monkeypatch.setattr(uploads._fs, "pipe_file", write_and_roll_back)
        uploads.upload(run)
        uploads.restore(tmp_path / "again")
        assert iteration(run) == 20
        again = replace(run, directory=tmp_path / "again")
        assert (iteration(again), events(again)) == (30, ["resume"])
        assert uploads.upload(run)["position"] == [1, 1, 20]
