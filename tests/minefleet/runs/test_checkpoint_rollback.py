"""Rollbacks on disk: which checkpoint is meant, and what becomes of those after it."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from minefleet.core.errors import ConfigError
from minefleet.runs.checkpoint_files import BEST, Checkpoint, CheckpointState, newest, numbered, read_state, write
from minefleet.runs.checkpoint_rollback import MAX_SET_ASIDE, PREVIOUS, choose, go_back

BESTS = {20, 50}
CHANGES = ("mkdir", "rename", "replace", "symlink_to", "unlink")


class DeathError(Exception):
    """The process has died."""


def save(directory: Path, iteration: int, version: int = 0) -> Path:
    best = max((one for one in BESTS if one <= iteration), default=0)
    state = CheckpointState(
        run_id="r",
        epoch=1,
        version=version or iteration + 1,
        iteration=iteration,
        best_return=float(best) if best else None,
        best_iteration=best,
    )
    return write(directory, Checkpoint(state=state, policy={}, optimizer={}, rng={}, run=""))


def make(directory: Path, iterations: tuple[int, ...] = (0, 10, 20, 30, 50, 60)) -> Path:
    for iteration in iterations:
        save(directory, iteration)
    return directory


def tree(directory: Path) -> dict[str, str]:
    """Links with their targets, checkpoints with their states."""
    links = {path.name: str(path.readlink()) for path in directory.iterdir() if path.is_symlink()}
    return links | {str(file.relative_to(directory)): file.read_text() for file in directory.glob("**/state.json")}


@pytest.mark.parametrize(
    ("to", "iteration"), [(BEST, 50), (PREVIOUS, 50), ("31", 30), ("30", 30), ("10", 10), ("11", 10), ("60", 60)]
)
def test_choose_finds_a_kept_checkpoint_by_what_it_is(tmp_path: Path, to: str, iteration: int) -> None:
    assert choose(make(tmp_path), to).name == f"{iteration:08d}"


def test_choose_takes_a_number_for_a_version_before_it_takes_it_for_an_iteration(tmp_path: Path) -> None:
    save(tmp_path, 10, version=11)
    save(tmp_path, 11, version=12)
    assert [choose(tmp_path, to).name for to in ("10", "11", "12")] == ["00000010", "00000010", "00000011"]


@pytest.mark.parametrize("to", ["40", "-1", "", "latest-ish", "00000030/../00000010"])
def test_choose_refuses_what_is_not_kept_and_names_what_is(tmp_path: Path, to: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is .*; there are those of version 1 \(iteration 0\), 11 \(iteration 10\), 21"
    ):
        choose(make(tmp_path), to)


def test_choose_in_a_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are those of version -"):
        choose(tmp_path / "none", PREVIOUS)
    save(tmp_path, 0)
    with pytest.raises(ConfigError, match="is previous"):
        choose(tmp_path, PREVIOUS)


def test_go_back_makes_a_checkpoint_the_newest_and_sets_later_ones_aside(tmp_path: Path) -> None:
    go_back(make(tmp_path), "00000030")
    assert newest(tmp_path) == tmp_path / "00000030"
    assert [iteration for iteration, _ in sorted(numbered(tmp_path))] == [0, 10, 20, 30]
    assert sorted(path.name for path in (tmp_path / "set-aside").iterdir()) == ["00000050", "00000060"]
    assert read_state(tmp_path / "set-aside" / "00000060").iteration == 60


@pytest.mark.parametrize(("to", "best"), [("00000060", "00000050"), ("00000030", "00000020"), ("00000010", None)])
def test_go_back_leaves_as_best_what_is_best_of_the_rest(tmp_path: Path, to: str, best: str | None) -> None:
    go_back(make(tmp_path), to)
    link = tmp_path / "best"
    assert (str(link.readlink()) if link.is_symlink() else None) == best


def test_go_back_repeatedly_keeps_the_last_ones_that_were_set_aside(tmp_path: Path) -> None:
    make(tmp_path, (0,))
    for version in range(2, 2 * MAX_SET_ASIDE):
        save(tmp_path, 10, version=version)
        go_back(tmp_path, "00000000")
    versions = {read_state(path).version for path in (tmp_path / "set-aside").iterdir()}
    assert versions == set(range(MAX_SET_ASIDE, 2 * MAX_SET_ASIDE))


def test_go_back_to_a_checkpoint_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    before = tree(make(tmp_path))
    with pytest.raises(ConfigError, match="00000040 does not exist"):
        go_back(tmp_path, "00000040")
    assert tree(tmp_path) == before


def test_go_back_that_died_at_any_change_of_the_disk_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_back(make(tmp_path / "whole"), "00000030")
    expected = tree(tmp_path / "whole")

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if next(steps) == death:
                raise DeathError
            return change(*arguments, **more)

        return call

    for death in count():
        directory, steps = make(tmp_path / str(death)), count()
        with monkeypatch.context() as patched:
            for change in CHANGES:
                patched.setattr(Path, change, dying(getattr(Path, change)))
            patched.setattr(shutil, "rmtree", dying(shutil.rmtree))
            try:
                go_back(directory, "00000030")
            except DeathError:
                assert read_state(newest(directory) or directory).iteration in (30, 60)
            else:
                break
        go_back(directory, "00000030")
        assert tree(directory) == expected, death
    assert death > 6
