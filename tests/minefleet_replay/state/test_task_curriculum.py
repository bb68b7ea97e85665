"""Tasks are drawn by weight, and by success those most that are neither mastered nor hopeless."""

import math
from collections import Counter
from random import Random

import pytest

from minefleet_replay.state.task_curriculum import LEAST, WINDOW, TaskSampler


def drawn(sampler: TaskSampler, draws: int = 4000) -> Counter[str]:
    return Counter(sampler.draw() for _ in range(draws))


def test_tasks_are_drawn_by_their_weights() -> None:
    sampler = TaskSampler({"dig": 3.0, "build": 1.0}, by_success=False, rng=Random(0))
    for _ in range(WINDOW):
        sampler.record("dig", 1.0)
    assert drawn(sampler)["dig"] == pytest.approx(3000, rel=0.05)


def test_task_sampler_draws_tasks_most_that_are_neither_mastered_nor_hopeless() -> None:
    sampler = TaskSampler({"mastered": 1.0, "hopeless": 1.0, "half": 1.0}, by_success=True, rng=Random(0))
    assert drawn(sampler)["half"] == pytest.approx(4000 / 3, rel=0.1)
    for number in range(2 * WINDOW):
        sampler.record("mastered", 1.0)
        sampler.record("hopeless", 0.0)
        sampler.record("half", number % 2)
    assert sampler.weight("half") == pytest.approx(1.0)
    for task in ("mastered", "hopeless"):
        assert sampler.weight(task) == pytest.approx(4 * 51 / 52 / 52)
    assert drawn(sampler)["half"] > 3000


def test_a_task_that_becomes_possible_is_drawn_more_again() -> None:
    sampler = TaskSampler({"hard": 2.0}, by_success=True, rng=Random(0))
    for _ in range(1000):
        sampler.record("hard", 0.0)
    before = sampler.weight("hard")
    for _ in range(WINDOW // 2):
        sampler.record("hard", 1.0)
    assert before >= 2.0 * LEAST and sampler.weight("hard") == pytest.approx(2.0)


def test_a_success_out_of_range_or_of_an_unknown_task_breaks_nothing() -> None:
    sampler = TaskSampler({"dig": 1.0}, by_success=True, rng=Random(0))
    for success in (-3.0, 7.0, math.nan, math.inf):
        sampler.record("dig", success)
    sampler.record("fly", 1.0)
    assert sampler.weight("dig") == pytest.approx(1.0) and drawn(sampler, 10) == {"dig": 10}
