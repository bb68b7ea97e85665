import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minefleet.config import EnvConfig, FleetConfig
from minefleet.core.schema import Schema
from minefleet.monitoring.journal import read_journal, record_restart, record_start
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.run_yaml import Run

PLACE: dict[str, Any] = {"iteration": 2, "env_steps": 64, "wall_s": 1.5}


def make_run(directory: Path, config: FleetConfig | None = None) -> Run:
    config = config or FleetConfig(env=EnvConfig(id="CartPole-v1"))
    run = Run(directory=directory, config=config, schema=Schema(obs={}, action={}), architecture="")
    run.write()
    return run


def save(run: Run, run_text: str | None = None) -> CheckpointState:
    state = CheckpointState(run_id="r", **PLACE)
    text = (run.directory / "run.yaml").read_text() if run_text is None else run_text
    write(run.checkpoints, Checkpoint(state=state, policy={}, optimizer={}, rng={}, run=text))
    return state


def test_first_start_is_no_resume_and_a_later_one_stands_at_its_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    record_start(run, CheckpointState(run_id="r"))
    record_start(run, save(run))
    first, second = read_journal(tmp_path)
    assert (first["event"], first["iteration"]) == ("start", 0) and "keys" not in first
    assert (second["event"], second["keys"]) == ("resume", []) and PLACE.items() <= second.items()
    assert 0 < first["time_s"] <= second["time_s"]


def test_resume_names_the_keys_that_differ_from_the_checkpoints_but_no_address(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    state = save(run)
    text = (tmp_path / "run.yaml").read_text()
    (tmp_path / "run.yaml").write_text(text.replace("seed: 0", "seed: 5", 1).replace("127.0.0.1:0", "127.0.0.1:9"))
    record_start(run, state)
    (line,) = read_journal(tmp_path)
    assert line["keys"] == [{"key": "seed", "old": 0, "new": 5}]


@pytest.mark.parametrize("text", ["config: {gone: 1}\nschema: {}\narchitecture: x\n", "[", ""])
def test_resume_from_a_checkpoint_of_an_unknown_configuration_is_recorded_without_keys(
    tmp_path: Path, text: str
) -> None:
    run = make_run(tmp_path)
    record_start(run, save(run, text))
    assert [(line["event"], line["keys"]) for line in read_journal(tmp_path)] == [("resume", [])]


def test_restart_stands_at_the_last_row_of_metrics(tmp_path: Path) -> None:
    record_restart(tmp_path, "replay", "exit code 1")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(PLACE) + '\n{"iteration": 3, "env_st')
    record_restart(tmp_path, "actor-0", "killed by SIGKILL")
    before, after = read_journal(tmp_path)
    assert (before["iteration"], before["env_steps"], before["wall_s"]) == (0, 0, 0)
    assert (after["event"], after["name"], after["how"]) == ("restart", "actor-0", "killed by SIGKILL")
    assert PLACE.items() <= after.items()


def test_torn_line_is_ignored_and_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    record_restart(tmp_path, "actor-0", "exit code 1")
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"event": "resta')
    assert [line["name"] for line in read_journal(tmp_path)] == ["actor-0"]
    record_restart(tmp_path, "actor-1", "exit code 1")
    record_restart(tmp_path, "actor-2", "exit code 1")
    assert [line["name"] for line in read_journal(tmp_path)] == ["actor-0", "actor-1", "actor-2"]


def test_read_journal_leaves_out_garbage(tmp_path: Path) -> None:
    garbage = [b"\xff\xfe\0", b"[1]", b"null", b'"x"', b"[" * 99999, b"9" * 9999, b"{", b"", b'{"event": 1}', b"{}"]
    (tmp_path / "journal.jsonl").write_bytes(b"\n".join(garbage) + b"\n")
    assert read_journal(tmp_path) == [{"event": 1}]


@pytest.mark.parametrize("target", ["/dev/full", ".", "missing/journal.jsonl"])
def test_journal_that_cannot_be_written_stops_nobody(tmp_path: Path, target: str) -> None:
    run = make_run(tmp_path)
    (tmp_path / "journal.jsonl").symlink_to(target)
    record_start(run, save(run))
    (tmp_path / "metrics.jsonl").mkdir()
    record_restart(tmp_path, "actor-0", "exit code 1")
    assert read_journal(tmp_path) == []


def test_journal_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from minefleet.monitoring.journal import record_restart;"
        "[record_restart(Path(sys.argv[1]), sys.argv[2], 'x' * 1000) for _ in range(200)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    # An empty line may stand between them: who sees half of another's write takes it for torn.
    assert sorted(line["name"] for line in read_journal(tmp_path)) == sorted("abc" * 200)
