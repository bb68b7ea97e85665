"""Trials in a folder that several processes share, some of which are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import optuna
import pytest
from optuna.trial import FrozenTrial, Trial

from minefleet.core.errors import ConfigError
from minefleet.sweeps.spec import Range, SweepSpec
from minefleet.sweeps.study import FIRST_PRUNED_PART, JOURNAL_FILE, RANDOM_TRIALS, STUDY, JournalLock, Study

SPEC = SweepSpec(space={"seed": Range(0, 10**6), "train_config.learning_rate": Range(1e-5, 1e-2, log=True)}, trials=3)

CLAIM = """
import sys
from pathlib import Path
from minefleet.sweeps.spec import read_spec
from minefleet.sweeps.study import SPEC_FILE, Study
directory = Path(sys.argv[1])
with Study(directory, read_spec(directory / SPEC_FILE)).claimed() as taken:
    trial, values, _ = taken
    print(trial.number, values, flush=True)
    sys.stdin.read()
"""


def finish(study: Study, value: float | None = 1.0) -> int:
    """Takes a trial and ends it; returns its number, -1 where all are taken."""
    with study.claimed() as taken:
        if taken is None:
            return -1
        study.end(taken[0], value, reason="" if value is not None else "broken")
        return taken[0].number


def claim_elsewhere(directory: Path) -> tuple["subprocess.Popen[str]", str]:
    """A process that works on a trial, and that trial."""
    Study(directory, SPEC)
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, process.stdout.readline()


def test_claimed_trial_of_a_killed_process_is_taken_up_with_its_values(tmp_path: Path) -> None:
    process, said = claim_elsewhere(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with Study(tmp_path, SPEC).claimed() as taken:
        assert taken is not None
        assert f"{taken[0].number} {taken[1]}\n" == said


def test_claimed_trial_of_a_live_process_is_left_to_it(tmp_path: Path) -> None:
    process, said = claim_elsewhere(tmp_path)
    assert said.startswith("0 ")
    assert [finish(Study(tmp_path, SPEC)) for _ in range(3)] == [1, 2, -1]
    process.communicate()
    assert finish(Study(tmp_path, SPEC)) == 0


def test_trials_are_as_many_as_wanted_whether_they_fail_or_not(tmp_path: Path) -> None:
    study = Study(tmp_path, SPEC)
    assert [finish(study, value) for value in (1.0, None, 3.0, 4.0)] == [0, 1, 2, -1]
    assert study.best is not None and study.best.number == 2
    more = Study(tmp_path, SweepSpec(space=SPEC.space, trials=4))
    assert [finish(more), finish(more)] == [3, -1]


def test_values_of_a_sweep_that_was_interrupted_are_those_of_one_that_was_not(tmp_path: Path) -> None:
    whole, parts = Study(tmp_path / "whole", SPEC), tmp_path / "parts"
    for _ in range(3):
        finish(whole)
        finish(Study(parts, SPEC))
    values = [trial.params for trial in whole.trials]
    assert values == [trial.params for trial in Study(parts, SPEC).trials]
    assert len({value["seed"] for value in values}) == 3


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_of_a_trial_whose_process_died_before_it_drew_them_are_the_same(tmp_path: Path, sampler: str) -> None:
    spec = SweepSpec(space=SPEC.space, trials=1, sampler=sampler)
    whole = Study(tmp_path / "whole", spec)
    finish(whole)
    Study(tmp_path / "killed", spec)
    journal = tmp_path / "killed" / JOURNAL_FILE
    backend = optuna.storages.journal.JournalFileBackend(str(journal), JournalLock(journal))
    optuna.load_study(study_name=STUDY, storage=optuna.storages.JournalStorage(backend)).ask()
    killed = Study(tmp_path / "killed", spec)
    assert finish(killed) == 0
    assert [trial.params for trial in killed.trials] == [trial.params for trial in whole.trials]


def test_values_of_sweeps_with_neighbouring_seeds_differ(tmp_path: Path) -> None:
    drawn = []
    for seed in range(3):
        study = Study(tmp_path / str(seed), SweepSpec(space=SPEC.space, trials=3, seed=seed))
        while finish(study) >= 0:
            pass
        drawn += [trial.params["seed"] for trial in study.trials]
    assert len(set(drawn)) == 9


def test_claimed_trial_that_its_process_ends_meanwhile_is_not_taken_up(tmp_path: Path) -> None:
    other = Study(tmp_path, SPEC)
    ended: list[int] = []

    class Late(Study):
        """Looks for work just before another process ends its trial."""

        def _lock(self, trial: Trial | FrozenTrial) -> IO[bytes] | None:
            if not ended:
                other.end(trial_there, 1.0)
                log_there.close()
                ended.append(trial.number)
            return super()._lock(trial)

    with other.claimed() as taken:
        assert taken is not None
        trial_there, _, log_there = taken
        assert finish(Late(tmp_path, SPEC)) == 1
    assert ended == [0] and [trial.value for trial in other.trials] == [1.0, 1.0]


def test_trial_behind_the_median_is_pruned_after_the_first_part_that_counts(tmp_path: Path) -> None:
    study = Study(tmp_path, SweepSpec(space=SPEC.space, trials=RANDOM_TRIALS + 1))
    for _ in range(RANDOM_TRIALS):
        with study.claimed() as taken:
            assert taken is not None
            for part in range(1, FIRST_PRUNED_PART + 1):
                taken[0].report(1.0, part)
            study.end(taken[0], 1.0)
    with study.claimed() as taken:
        assert taken is not None
        pruned = []
        for part in range(1, FIRST_PRUNED_PART + 1):
            taken[0].report(0.0, part)
            pruned.append(taken[0].should_prune())
    assert pruned == [False] * 3 + [True]


def test_folder_whose_journal_is_gone_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, SPEC)
    finish(study)
    (tmp_path / "trial-0000").mkdir()
    (tmp_path / JOURNAL_FILE).unlink()
    with pytest.raises(ConfigError, match="holds trials that"):
        Study(tmp_path, SPEC)


def test_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    Study(tmp_path, SPEC)
    with pytest.raises(ConfigError, match="another goal"):
        Study(tmp_path, SweepSpec(space=SPEC.space, trials=3, goal="minimize"))


def test_journal_with_a_line_that_a_full_disk_has_torn_goes_on_before_it(tmp_path: Path) -> None:
    study = Study(tmp_path, SPEC)
    assert finish(study) == 0
    with (tmp_path / JOURNAL_FILE).open("ab") as journal:
        journal.write(b'{"op_code": 4, "worker_')
    assert finish(study) == 1
    again = Study(tmp_path, SPEC)
    assert finish(again) == 2 and [trial.value for trial in again.trials] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("garbage", [b"garbage\n{}\n", b"3\n", b"[]\n", b'{"op_code": 99, "worker_id": "x"}\n'])
def test_journal_with_garbage_is_refused_by_its_name(tmp_path: Path, garbage: bytes) -> None:
    finish(Study(tmp_path, SPEC))
    with (tmp_path / JOURNAL_FILE).open("ab") as journal:
        journal.write(garbage)
    with pytest.raises(ConfigError, match="is damaged, or none"):
        Study(tmp_path, SPEC)
