"""Each task has a share of the steps, and tasks that starve are named."""

from typing import Any

import pytest

from minefleet.config import EnvConfig, FleetConfig, TrainConfig
from minefleet.rpc.durations import duration
from minefleet.rpc.replay_types import Lease
from minefleet.v1.replay_service_pb2 import StepAccount
from minefleet_learner.metrics.task_step_shares import FIRST_ITERATIONS, WINDOW, StepShares

CONFIG = FleetConfig(env=EnvConfig(id="CartPole-v1"), train_config=TrainConfig(batches_per_iteration=4))


def stats(
    name: str, played: int, trained: int, stale: int = 0, too_slow: int = 0, needed_s: float = 0, let_off: int = 0
) -> StepAccount:
    """Of a task whose steps are trained on with a staleness of 2, after 3 s."""
    return StepAccount(
        name=name,
        played=played,
        trained=trained,
        dropped={"stale": stale},
        too_slow=too_slow,
        needed_window=duration(needed_s),
        let_off=let_off,
        trained_staleness=2 * trained,
        trained_age=duration(3.0 * trained),
    )


def answer(*tasks: StepAccount, streams: tuple[StepAccount, ...] = (), window_s: float = 2.0) -> Lease:
    return Lease(
        number=1,
        chunks=[],
        env_steps=0,
        env_failures=0,
        tasks=list(tasks),
        starved_streams=list(streams),
        window_s=window_s,
        interval_s=1.0,
    )


def summary(shares: StepShares, iterations: int, slow_trained: int, **options: Any) -> dict[str, Any]:
    """After so many iterations in each of which two tasks play 100 steps, and one of them is trained on less."""
    for number in range(1, iterations + 1):
        slow = stats("slow", 100 * number, slow_trained * number, (100 - slow_trained) * number, **options)
        found = shares.summary([answer(stats("fast", 100 * number, 100 * number), slow)])
    return found


def test_shares_are_of_the_last_iterations_and_name_why_steps_were_dropped() -> None:
    shares = StepShares(CONFIG)
    found = summary(shares, 2 * WINDOW, 60)["step_shares"]
    assert found["slow"]["played_steps"] == 100 * WINDOW
    assert (found["slow"]["played_share"], found["slow"]["trained_share"]) == (0.5, pytest.approx(60 / 160))
    assert found["slow"]["dropped_steps"] == {"stale": 40 * WINDOW}
    assert found["fast"]["dropped_steps"] == {}
    assert (found["slow"]["staleness"], found["slow"]["age_s"]) == (2.0, 3.0)


@pytest.mark.parametrize(("trained", "starves"), [(60, False), (30, True), (0, True)])
def test_a_task_starves_whose_trained_share_is_below_half_of_its_played_share(trained: int, starves: bool) -> None:
    warnings = summary(StepShares(CONFIG), WINDOW, trained)["step_warnings"]
    assert set(warnings) == ({"starved: slow"} if starves else set())
    assert all("task 'slow'" in said and "stale" in said for said in warnings.values())


def test_task_shares_show_steps_lost_in_the_first_iterations_without_calling_it_starving() -> None:
    shares, warnings, found = StepShares(CONFIG), set[str](), dict[str, Any]()
    for number in range(1, 2 * WINDOW):
        stale = 20 * min(number, FIRST_ITERATIONS)
        slow = stats("slow", 20 * number, 20 * number - stale, stale)
        found = shares.summary([answer(stats("fast", 100 * number, 100 * number), slow)])
        warnings |= set(found["step_warnings"])
        assert (number <= FIRST_ITERATIONS) == (number == 1 or found["step_shares"]["slow"]["trained_steps"] == 0)
    assert not warnings


def test_task_shares_count_the_iterations_in_a_row_that_a_task_has_starved() -> None:
    shares = StepShares(CONFIG)
    summary(shares, 2 * WINDOW, 0)
    assert shares.starved_for == 2 * WINDOW - (FIRST_ITERATIONS + WINDOW // 2) + 1
    summary(shares, 2 * WINDOW, 100)
    assert shares.starved_for == 0


def test_task_shares_name_a_task_that_balance_lets_off() -> None:
    shares = StepShares(CONFIG)
    for number in range(WINDOW):
        slow, fast = (
            stats("slow", 10 * number, 10 * number, let_off=30 * number),
            stats("fast", 90 * number, 90 * number),
        )
        found = shares.summary([answer(fast, slow)])
    (said,) = found["step_warnings"].values()
    assert "task 'slow'" in said and "10.00%" in said and "balance_limit=4 " in said
    assert found["step_shares"]["slow"]["let_off_steps"] == 30 * (WINDOW - 1)
    assert shares.starved_for == 0


def test_task_shares_call_no_task_starved_after_a_few_iterations() -> None:
    assert summary(StepShares(CONFIG), 2, 0)["step_warnings"] == {}


def test_task_shares_name_a_task_that_is_too_slow_at_once_with_values_that_help() -> None:
    found = summary(StepShares(CONFIG), 1, 0, too_slow=2, needed_s=7.5)
    (said,) = found["step_warnings"].values()
    assert "2 environments of task 'slow'" in said
    assert "max_staleness=7 " in said and "batches_per_iteration=15" in said
    assert found["step_shares"]["slow"]["too_slow"] == 2


def test_shards_are_summed_and_a_replay_that_counts_anew_begins_a_new_window() -> None:
    shares = StepShares(CONFIG)
    two = [answer(stats("a", 10, 10)), answer(stats("a", 30, 10), stats("b", 5, 5))]
    shares.summary(two)
    grown = [answer(stats("a", 20, 20)), answer(stats("a", 60, 20), stats("b", 6, 6))]
    found = shares.summary(grown)["step_shares"]
    assert (found["a"]["played_steps"], found["a"]["trained_steps"], found["b"]["played_steps"]) == (40, 20, 1)
    assert shares.summary([answer(stats("a", 1, 1))])["step_shares"]["a"]["played_steps"] == 0


def test_streams_that_starve_are_named() -> None:
    (stream,) = StepShares(CONFIG).summary([answer(streams=(stats("x-3", 9, 1, 8),))])["starved_streams"]
    assert stream == {"stream": "x-3", "played_steps": 9, "trained_steps": 1, "dropped_steps": {"stale": 8}}
