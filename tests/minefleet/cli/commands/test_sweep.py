"""The command around a sweep's trials: what it prints, and its exit codes."""

import subprocess
from pathlib import Path

import pytest
from tests.conftest import COMMAND

from minefleet.cli.commands.sweep import _conclude
from minefleet.sweeps.spec import SweepSpec, read_spec
from minefleet.sweeps.study import Study

SPEC = "config: CartPole-v1\nset: [stop.env_steps=1000]\nspace: {seed: [1, 2]}\ntrials: 1\n"


def sweep(folder: Path, directory: str) -> "subprocess.CompletedProcess[str]":
    (folder / "rates.yaml").write_text(SPEC)
    command = [*COMMAND, "sweep", "rates.yaml", "--dir", directory]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_sweep_in_a_folder_that_cannot_be_made_says_so_in_one_line(tmp_path: Path) -> None:
    done = sweep(tmp_path, "rates.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("minefleet: rates.yaml: ") and done.stderr.count("\n") == 1


def test_sweep_whose_trials_others_have_taken_has_not_failed(tmp_path: Path) -> None:
    sweep(tmp_path, "rates.yaml")
    study = Study(tmp_path / "trials", read_spec(tmp_path / "rates.yaml"))
    with study.claimed():
        assert sweep(tmp_path, "trials").returncode == 0
    with study.claimed() as taken:
        assert taken is not None
        study.end(taken[0], None, reason="exit code 1")
    assert sweep(tmp_path, "trials").returncode == 1


@pytest.mark.parametrize(("goal", "order"), [("maximize", "102"), ("minimize", "012")])
def test_sweep_prints_trials_with_a_result_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], goal: str, order: str
) -> None:
    spec = SweepSpec(space={"seed": [1, 2]}, config="CartPole-v1", trials=3, goal=goal)  # type: ignore[arg-type]
    study = Study(tmp_path / "my sweep", spec)
    for value in (1.0, 2.0, None):
        with study.claimed() as taken:
            assert taken is not None
            taken[0].report(99.0 if goal == "maximize" else -99.0, 1)
            study.end(taken[0], value, is_pruned=value is None)
    _conclude(study, as_json=False)
    shown = capsys.readouterr().out
    assert f"watch '{study.directory}'" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == list(order)
