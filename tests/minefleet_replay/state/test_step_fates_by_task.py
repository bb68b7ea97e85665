"""Replay counts the fate of the steps of tasks and streams."""

from typing import Any

from minefleet_replay.state.chunk import NO_LOCATION, FragmentEntry
from minefleet_replay.state.step_fates_by_task import MAX_TASKS, OTHER_TASK, StepCounter


def fragment(task: str, steps: int) -> FragmentEntry:
    return FragmentEntry(0, 0, 1, 1, 1, steps, 0, 0, True, NO_LOCATION, task)


def test_steps_are_counted_by_task_and_stream() -> None:
    shares = StepCounter()
    shares.count("s", [fragment("a", 5), fragment("b", 3)], "played")
    shares.count("s", [fragment("a", 5)], "trained")
    shares.count("t", [fragment("a", 2)], "played")
    shares.count("t", [fragment("a", 2)], "stale")
    slow = {"t": 7.0}
    tasks = {one.name: one for one in shares.tasks(slow, {"b": 2})}
    assert tasks["a"].counts == {"played": 7, "trained": 5, "stale": 2}
    assert (tasks["a"].too_slow, tasks["a"].needed_s, tasks["b"].too_slow) == (1, 7.0, 0)
    assert (tasks["a"].let_off, tasks["b"].let_off) == (0, 2)
    (starved,) = shares.starved(slow)
    assert (starved.name, starved.counts["stale"], starved.too_slow) == ("t", 2, 1)


def test_step_usage_of_the_last_four_settled_fragments_says_whether_a_stream_loses_most() -> None:
    shares = StepCounter()
    for number, (what, loses_most) in enumerate(
        [
            ("stale", False),
            ("stale", False),
            ("evicted", False),
            ("stale", False),
            ("trained", True),
            ("trained", False),
            ("stale", False),
            ("stale", False),
            ("stale", True),
        ]
    ):
        shares.count("s", [fragment("a", 8)], "played")
        shares.count("s", [fragment("a", 8)], what)
        assert shares.loses_most("s") == loses_most, number
    assert not shares.loses_most("unknown")


def test_step_counter_of_streams_returns_the_known_ones_in_the_order_asked_for() -> None:
    shares = StepCounter()
    shares.count("s", [fragment("a", 5)], "played")
    shares.count("t", [fragment("a", 7)], "played")
    shares.count("t", [fragment("a", 4)], "trained")
    shares.count("t", [fragment("a", 2)], "stale")
    assert [(one.name, one.counts["trained"], one.counts["stale"]) for one in shares.of_streams(["t", "x", "s"])] == [
        ("t", 4, 2),
        ("s", 0, 0),
    ]


def test_step_usage_counts_no_stream_as_starved_whose_steps_are_still_held() -> None:
    shares = StepCounter()
    shares.count("s", [fragment("a", 5)], "played")
    assert shares.starved({}) == []


def test_tasks_beyond_a_bound_are_counted_together() -> None:
    shares = StepCounter()
    for number in range(MAX_TASKS + 5):
        shares.count("s", [fragment(f"task {number}", 1)], "played")
    counted = {one.name: one.counts["played"] for one in shares.tasks({}, {})}
    assert len(counted) == MAX_TASKS + 1
    assert counted[OTHER_TASK] == 5


def test_replay_counts_what_is_played_trained_and_dropped_once(world: Any) -> None:
    for number in range(4):
        world.append("s", number, 1)
        assert world.append("s", number, 1) == "duplicate"
    world.lease(1, 2)
    world.ack(1)
    world.ack(1)
    world.hear(9)
    world.append("s", 4, 1)
    world.replay.tick()
    (task,), _, _ = world.replay.shares()
    assert task.counts == {"played": 5, "trained": 2, "stale": 3}


def test_how_stale_steps_were_at_their_first_use_is_told_also_where_a_newer_version_acted(world: Any) -> None:
    world.hear(5)
    for number, version in enumerate((4, 5, 9)):
        world.append("s", number, version)
    world.clock.now_s += 3.0
    world.lease(1, 3, use_version=5)
    world.ack(1)
    (task,), _, _ = world.replay.shares()
    assert task.use == (1, 9.0)
    assert task.to_proto().trained_staleness == 1
