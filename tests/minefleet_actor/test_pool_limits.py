"""Environments that are made anew between episodes, limited memory, and starts and resets that take turns."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.envs import make, schema_of
from minefleet_actor.pool import EnvPool, Kind

FAULTY = Path(__file__).with_name("faulty_env.py")
LIMIT_BYTES = 150_000_000
PATIENCE_S = 60.0
GO_ON, END, LEAK, LEAK_BELOW = 0, 1, 22, 23


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Any]:
    """Makes pools of faulty environments and closes them."""
    opened: list[EnvPool] = []

    def open_pool(*, keeps_diary: bool = False, **worker: Any) -> EnvPool:
        kwargs = {"directory": str(tmp_path)}
        schema = schema_of(make(EnvConfig(generator=f"{FAULTY}:Faulty", kwargs=kwargs)))
        config = EnvConfig(generator=f"{FAULTY}:Faulty", kwargs=kwargs | {"keeps_diary": keeps_diary})
        opened.append(EnvPool(config, schema, WorkerConfig(**worker), seed=0, actor_index=0))
        opened[-1].start()
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


def ask(pool: EnvPool, slots: list[int], action: int | None = None) -> None:
    """Steps the slots, or resets them, and waits until each has done so."""
    if action is None:
        pool.reset(np.array(slots))
    else:
        pool.step(np.array(slots), np.full(len(slots), action))
    left = set(slots)
    while left:
        ready = pool.wait(PATIENCE_S)
        assert set(ready.kind.tolist()) == {Kind.RESET if action is None else Kind.STEP}, ready.failures
        left -= set(ready.slots.tolist())


def test_a_process_is_replaced_between_episodes_when_it_is_old_and_no_step_is_lost(pools: Any) -> None:
    pool = pools(num_envs=2, restart_interval=1e-3)
    ask(pool, [0, 1])
    for _ in range(3):
        before = pool.pids
        ask(pool, [0, 1], GO_ON)
        ask(pool, [0], END)
        assert pool.pids == before
        ask(pool, [0])
        assert pool.pids[0] not in (0, before[0])
        assert pool.pids[1] == before[1]
        assert pool.obs["count"][0].tolist() == [1, 0]
    assert pool.obs["count"][1].tolist() == [1, 3]


def test_environment_that_is_due_is_made_anew_while_others_of_its_process_play_on(pools: Any) -> None:
    pool = pools(num_envs=2, envs_per_process=2, restart_interval=1e-3)
    ask(pool, [0, 1])
    before = pool.pids
    ask(pool, [0, 1], GO_ON)
    ask(pool, [0], END)
    ask(pool, [0])
    ask(pool, [1], GO_ON)
    assert pool.obs["count"].tolist() == [[1, 0], [1, 2]]
    assert pool.pids == before


def test_environment_without_a_restart_interval_is_kept(pools: Any) -> None:
    pool = pools(num_envs=1)
    for episode in range(1, 4):
        ask(pool, [0])
        assert pool.obs["count"].tolist() == [[episode, 0]]
        ask(pool, [0], END)


def test_a_process_that_takes_a_little_too_much_memory_is_replaced_between_episodes(pools: Any) -> None:
    pool = pools(num_envs=2, max_rss_bytes=LIMIT_BYTES)
    ask(pool, [0, 1])
    before = pool.pids
    ask(pool, [0], LEAK)
    while pool.pids[0] == before[0]:
        ask(pool, [0], END)
        ask(pool, [0])
    assert pool.obs["count"][0].tolist() == [1, 0]
    assert pool.pids[1] == before[1]


def test_a_process_whose_children_take_far_too_much_memory_is_killed_at_once(pools: Any) -> None:
    pool = pools(num_envs=2, max_rss_bytes=LIMIT_BYTES)
    ask(pool, [0, 1])
    ask(pool, [0], LEAK_BELOW)
    ready = pool.wait(PATIENCE_S)
    assert ready.slots.tolist() == [0]
    assert ready.kind.tolist() == [Kind.FAILED]
    assert ready.failures[0].kind == "memory"
    assert "with what it has started, and may take 150000000" in ready.failures[0].text
    ask(pool, [0])
    ask(pool, [0, 1], GO_ON)


@pytest.mark.parametrize("limit", [1, 2])
def test_pool_starts_and_resets_at_most_max_resets_at_once(limit: int, pools: Any, tmp_path: Path) -> None:
    pool = pools(keeps_diary=True, num_envs=4, max_resets_at_once=limit)
    for _ in range(3):
        ask(pool, [0, 1, 2, 3])
        ask(pool, [0, 1, 2, 3], END)
    marks = [line.split()[0] for line in (tmp_path / "diary").read_text().splitlines()]
    assert marks.count("begin") == marks.count("end") == 4 + 12
    assert max(itertools.accumulate(1 if mark == "begin" else -1 for mark in marks)) == limit


def test_first_episodes_begin_spread_over_time_and_none_before_its_share(pools: Any, tmp_path: Path) -> None:
    pool = pools(keeps_diary=True, num_envs=4, envs_per_process=4, start_jitter_s=2.0)
    ask(pool, [3, 1, 0, 2])
    diary = [line.split() for line in (tmp_path / "diary").read_text().splitlines()]
    made_s = max(float(at_s) for mark, what, _, at_s in diary if (mark, what) == ("end", "make"))
    resets_s = sorted(float(at_s) for mark, what, _, at_s in diary if (mark, what) == ("begin", "reset"))
    assert len(resets_s) == 4
    for place, reset_s in enumerate(resets_s):
        assert reset_s >= made_s + place * 0.5


def test_start_returns_when_one_environment_is_made_and_the_others_follow(pools: Any) -> None:
    pool = pools(num_envs=3, max_resets_at_once=1)
    ask(pool, [0])
    assert 0 in pool.pids
    ask(pool, [2, 1])
    assert 0 not in pool.pids
