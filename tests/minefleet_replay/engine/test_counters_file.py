"""Replay's counters outlive its store."""

from dataclasses import replace
from typing import Any

import pytest

from minefleet.core.errors import RunMismatchError
from minefleet_replay.engine.counters_file import FILE, Counters, read_counters
from minefleet_replay.engine.open_replay import set_aside
from minefleet_replay.state.actor_step_totals import ActorCounts


def break_store(world: Any) -> None:
    """Closes replay, and damages its database."""
    world.replay.close()
    (world.directory / "db" / "CURRENT").write_text("garbage")


def fill(world: Any) -> None:
    world.become(epoch=3, version=7, resumed=2, first=5)
    world.append("s", 0, version=7)
    world.report(("s", 0), ("s", 1), actor="a", progress=ActorCounts(100, 1))
    world.replay.tick()


def test_a_new_store_has_the_counters_of_one_that_was_set_aside(world: Any) -> None:
    fill(world)
    before = world.replay.stats()
    break_store(world)
    world.replay = world.open()
    after = world.replay.stats()
    for name in ("appended_fragments", "env_steps", "env_failures", "newest_version", "epoch"):
        assert after[name] == before[name] > 0
    assert world.runs[-1] == "run-1"
    assert world.replay.transactions.state.next_episode == 2
    assert world.faults() == []


def test_an_actor_that_reports_after_its_store_was_set_aside_is_not_counted_twice(world: Any) -> None:
    fill(world)
    break_store(world)
    world.replay = world.open()
    world.report(actor="a", progress=ActorCounts(110, 1))
    assert world.figure("env_steps") == 110


def test_a_store_that_is_set_aside_twice_counts_on(world: Any) -> None:
    fill(world)
    for number in (1, 2):
        break_store(world)
        world.replay = world.open()
        world.report(("s", number + 1), actor="b", progress=ActorCounts(number, 0))
        world.replay.tick()
    assert (world.figure("env_steps"), world.replay.transactions.state.next_episode) == (102, 4)
    assert len(list(world.directory.glob("broken-*"))) == 2


def test_a_fenced_learner_and_another_run_are_refused_by_a_new_store_too(world: Any) -> None:
    fill(world)
    break_store(world)
    world.replay = world.open()
    with pytest.raises(RunMismatchError):
        world.replay.bind("run-2")
    world.learner = replace(world.learner, epoch=2)
    with pytest.raises(Exception, match="epoch 2 is fenced"):
        world.replay.read_episodes(world.learner, 0, 1)


def test_a_sound_store_without_its_identity_keeps_its_fragments(world: Any) -> None:
    fill(world)
    world.replay.close()
    (world.directory / "identity.json").unlink()
    world.replay = world.open()
    assert world.figure("live_fragments") == 1
    assert world.faults() == []


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"checksum": "0"}'])
def test_counters_file_that_is_damaged_is_written_anew(world: Any, damage: str) -> None:
    fill(world)
    counters = read_counters(world.directory)
    assert counters.next_episode == 2
    (world.directory / FILE).write_text(damage)
    assert read_counters(world.directory) == Counters()
    world.restart()
    world.replay.tick()
    assert read_counters(world.directory) == counters


def test_counters_file_with_a_changed_byte_is_not_used(world: Any) -> None:
    fill(world)
    path = world.directory / FILE
    path.write_text(path.read_text().replace('"next_episode": 2', '"next_episode": 3'))
    assert read_counters(world.directory) == Counters()


def test_a_store_whose_setting_aside_was_cut_short_is_not_taken_for_a_new_one(world: Any) -> None:
    fill(world)
    break_store(world)
    aside = set_aside(world.directory)
    for name in ("identity.json", "payloads"):
        (aside / name).rename(world.directory / name)
    world.replay = world.open()
    assert world.figure("env_steps") == 100
    assert len(list(world.directory.glob("broken-*"))) == 2
