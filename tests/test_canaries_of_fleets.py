"""Collapses of whole fleets with canary slots, which are killed at the worst moments."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.mortal_policy import WITNESS
from tests.run_history import check_history
from tests.test_ranks_of_fleets import MORTAL, assert_balanced
from tests.test_rollbacks_of_fleets import KEPT, RATE, journal, rollback, wait_for_iteration

from minefleet.monitoring.learner_requests_in_journal import ask
from minefleet.monitoring.status import read_status
from minefleet.runs.checkpoint_files import read_state
from minefleet.runs.run_yaml import read_run
from minefleet_actor.slot_assignment import canary_slots

CANARIES = (
    "rollout_config.canary_share=0.25",
    "rollout_config.replay_buffer_config.max_staleness=3",
    "train_config.anneal_lr_linearly=false",
    *KEPT,
    "train_config.save_interval=1",
)
"""The last checkpoint is a canary, so that a start would promote it if it promoted all that it publishes."""
TOO_FAST = 0.1
"""A hundred times the preset's rate."""
EXPERIENCE = 30
"""Iterations until it learns too fast, more than the rules need."""


def pause_of(fleet: Fleet) -> str:
    return read_status(fleet.directory).pause


def kill(fleet: Fleet, role: str) -> None:
    """Kills a role; returns when it is up again."""
    before = fleet.pid(role)
    os.kill(before, signal.SIGKILL)
    fleet.wait_for(lambda: fleet.pid(role) not in (0, before))


def assert_only_canaries_saw_it(fleet: Fleet, since: int) -> None:
    """Fails if a version that was trained from that iteration on, and rolled back, was promoted or acted elsewhere."""
    witness: list[dict[str, Any]] = [json.loads(line) for line in (fleet.directory / WITNESS).read_text().splitlines()]
    (undone,) = journal(fleet, "rollback")
    published = [row for row in witness if "published" in row]
    bad = {row["published"] for row in published if row["iteration"] >= since and row["time_s"] < undone["time_s"]}
    assert bad and not bad & {row["promoted"] for row in published}
    (pause,) = journal(fleet, "pause")
    while_paused = [row for row in published if pause["time_s"] < row["time_s"] < undone["time_s"]]
    assert all(row["iteration"] <= pause["iteration"] for row in while_paused), "a start publishes what was published"
    is_canary = canary_slots(read_run(fleet.directory).config.rollout_config, 0)
    saw_it = {slot for row in witness if row.get("played") in bad for slot in row["slots"]}
    assert saw_it and all(is_canary[slot] for slot in saw_it)
    others = {row["played"] for row in witness if "played" in row and not all(is_canary[row["slots"]])}
    assert max(others) > max(bad), "they have gone on after the rollback"


@pytest.mark.fleet
@pytest.mark.parametrize(
    ("moment", "whose"),
    [
        ("before the line of a pause", ""),
        ("before the line of a pause", "fleet"),
        ("after the line of a pause", "fleet"),
    ],
    ids=["a learner before its line", "a fleet before its line", "a fleet after its line"],
)
def test_a_planted_collapse_stays_with_canaries_whatever_is_killed_until_a_rollback(
    train: Callable[..., Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, whose: str
) -> None:
    monkeypatch.setenv("MINEFLEET_TEST_DEATHS", str(tmp_path))
    fleet = train("cartpole", MORTAL, *CANARIES, f"train_config.num_iterations={EXPERIENCE + 20}")
    wait_for_iteration(fleet, EXPERIENCE)
    (tmp_path / moment).write_text(whose)
    ask(fleet.directory, set={RATE: TOO_FAST})
    if whose == "fleet":
        fleet.process.wait()
        assert bool(journal(fleet, "pause")) == moment.startswith("after")
        fleet = train("--resume", str(fleet.directory), directory=fleet.directory)
    fleet.wait_for(lambda: bool(pause_of(fleet)))
    assert not (tmp_path / moment).exists()

    (line,), (pause,) = journal(fleet, "set"), journal(fleet, "pause")
    for role in ("learner", "parameters", "actor-0") if not whose else ():
        kill(fleet, role)
        fleet.wait_for(lambda: bool(pause_of(fleet)))
    shown = subprocess.run([*COMMAND, "status", str(fleet.directory)], capture_output=True, text=True, check=True)
    words = " ".join(shown.stdout.split())
    assert f"training is paused: the policy has collapsed: {pause['reason']}; `minefleet rollback` steps back" in words
    assert journal(fleet, "pause") == [pause]

    kept = (line["iteration"] - 1) // 5 * 5
    good = read_state(fleet.directory / "checkpoints" / f"{kept:08}")
    code, said = rollback(fleet, "--to", str(good.version))
    assert code == 0, said
    assert fleet.finish()["stopped_by"] == "num_iterations"
    assert_only_canaries_saw_it(fleet, line["iteration"])
    check_history(fleet.directory)
    assert_balanced(fleet.directory)
    assert_counters_never_go_back(fleet.rows())
