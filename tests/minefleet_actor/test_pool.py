"""The contract of a pool, for environments that behave; see test_pool_faults for those that do not."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.minefleet_actor.hosted import PlayedElsewhere

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.envs import make, schema_of
from minefleet.launch.placement import ALL_CORES
from minefleet_actor.pool import EnvPool, EpisodeEnd, InlinePool, Kind, Pool, Ready
from minefleet_actor.pool.episode_seed import episode_seed

FAULTY = Path(__file__).with_name("faulty_env.py")
ERRANDS = Path(__file__).with_name("errands_env.py")
SEED = 3
ACTOR = 2
DAWDLE = 14
PATIENCE_S = 60.0

MakePool = Callable[..., Pool]


def inline(config: EnvConfig, **worker: Any) -> Pool:
    return InlinePool(config, _schema(config), WorkerConfig(**worker), seed=SEED, actor_index=ACTOR)


def alone(config: EnvConfig, **worker: Any) -> Pool:
    return EnvPool(config, _schema(config), WorkerConfig(**worker), seed=SEED, actor_index=ACTOR)


def together(config: EnvConfig, **worker: Any) -> Pool:
    return alone(config, envs_per_process=3, **worker)


def elsewhere(config: EnvConfig, **worker: Any) -> Pool:
    return PlayedElsewhere(config, _schema(config), WorkerConfig(**worker), seed=SEED, actor_index=ACTOR)


def _schema(config: EnvConfig) -> Any:
    with closing(make(config)) as env:
        return schema_of(env)


def faulty(directory: Path, **kwargs: Any) -> EnvConfig:
    return EnvConfig(generator=f"{FAULTY}:Faulty", kwargs={"directory": str(directory)} | kwargs)


@pytest.fixture(params=[inline, together, elsewhere])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pool]:
    pool: Pool = request.param(faulty(tmp_path), num_envs=4)
    pool.start()
    yield pool
    pool.close()


def results(pool: Pool, slots: NDArray[np.intp]) -> list[Ready]:
    """Waits until each of the slots has had its say, once."""
    said: list[Ready] = []
    left = set(slots.tolist())
    while left:
        ready = pool.wait(PATIENCE_S)
        assert set(ready.slots.tolist()) <= left
        assert len(ready.slots), "nothing happened"
        left -= set(ready.slots.tolist())
        said.append(ready)
    return said


def column(said: list[Ready], name: str) -> NDArray[Any]:
    """A field of the results, in order of slots."""
    order = np.argsort(np.concatenate([ready.slots for ready in said]))
    values: NDArray[Any] = np.concatenate([getattr(ready, name) for ready in said])[order]
    return values


def reset_all(pool: Pool) -> NDArray[np.intp]:
    slots = np.arange(pool.num_slots)
    pool.reset(slots)
    assert set(column(results(pool, slots), "kind")) == {Kind.RESET}
    return slots


def plain_loop(slot: int, actions: NDArray[np.int64]) -> Iterator[tuple[Any, ...]]:
    """The values that a slot must show: Gymnasium's own loop, seeded once."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=30)
    obs, _ = env.reset(seed=episode_seed(SEED, ACTOR, slot, 0))
    yield (obs,)
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        yield obs, reward, terminated, truncated
        if terminated or truncated:
            obs, _ = env.reset()
            yield (obs,)


@pytest.mark.parametrize("make_pool", [inline, alone, together, elsewhere])
def test_pool_slots_step_as_a_plain_loop_with_their_seed_does(make_pool: MakePool) -> None:
    config = EnvConfig(id="CartPole-v1", kwargs={"max_episode_steps": 30})
    actions = np.random.default_rng(0).integers(2, size=(80, 4))
    expected = [plain_loop(slot, actions[:, slot]) for slot in range(4)]
    with closing(make_pool(config, num_envs=4)) as pool:
        pool.start()
        slots = reset_all(pool)
        for slot in slots:
            np.testing.assert_array_equal(pool.obs[slot], next(expected[slot])[0])
        for action in actions:
            pool.step(slots, action)
            said = results(pool, slots)
            over = column(said, "terminated") | column(said, "truncated")
            shown = [column(said, name) for name in ("reward", "terminated", "truncated")]
            for slot in slots:
                obs, *rest = next(expected[slot])
                np.testing.assert_array_equal(pool.obs[slot], obs)
                assert [array[slot] for array in shown] == rest
            pool.reset(slots[over])
            results(pool, slots[over])
            for slot in slots[over]:
                np.testing.assert_array_equal(pool.obs[slot], next(expected[slot])[0])


@pytest.mark.parametrize("make_pool", [inline, alone, together, elsewhere])
def test_an_environment_plays_the_task_that_its_reset_names(make_pool: MakePool) -> None:
    with closing(make_pool(EnvConfig(generator=f"{ERRANDS}:Errands"), num_envs=2)) as pool:
        pool.start()
        pool.reset(np.array([0]), task="dig für Köhler")
        pool.reset(np.array([1]))
        said = results(pool, np.arange(2))
        assert {slot: task for ready in said for slot, task in ready.tasks.items()} == {0: "dig für Köhler"}
        assert pool.obs[:, 0].tolist() == [14.0, 0.0]
        pool.step(np.arange(2), np.zeros(2, np.int64))
        ended = {slot: end.task for ready in results(pool, np.arange(2)) for slot, end in ready.endings.items()}
        assert ended == {0: "dig für Köhler", 1: ""}
        pool.reset(np.arange(2), task="")
        assert all(not ready.tasks for ready in results(pool, np.arange(2)))


def test_pool_steps_single_slots_independently(pool: Pool) -> None:
    reset_all(pool)
    pool.step(np.array([2]), np.array([0]))
    results(pool, np.array([2]))
    pool.step(np.array([0, 2]), np.array([0, 0]))
    results(pool, np.array([0, 2]))
    np.testing.assert_array_equal(pool.obs["count"], [[1, 1], [1, 0], [1, 2], [1, 0]])
    assert pool.obs["mode"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("gather_s", "answers"), [(0.0, [[0], [1, 2]]), (PATIENCE_S, [[0, 1, 2]])])
def test_pool_of_one_process_gathers_what_it_was_given_while_busy_for_a_while(
    tmp_path: Path, gather_s: float, answers: list[list[int]]
) -> None:
    config, worker = faulty(tmp_path), WorkerConfig(num_envs=3, envs_per_process=3)
    with closing(EnvPool(config, _schema(config), worker, seed=SEED, actor_index=ACTOR, gather_s=gather_s)) as pool:
        pool.start()
        reset_all(pool)
        pool.step(np.array([0]), np.array([DAWDLE]))
        pool.wait(0.0)
        pool.step(np.array([1]), np.array([0]))
        pool.wait(0.0)
        pool.step(np.array([2]), np.array([0]))
        assert [ready.slots.tolist() for ready in results(pool, np.arange(3))] == answers


def test_a_reset_and_the_steps_of_its_process_are_ready_together(tmp_path: Path) -> None:
    with closing(together(faulty(tmp_path), num_envs=3)) as pool:
        pool.start()
        slots = reset_all(pool)
        pool.step(slots, np.array([1, 0, 0]))
        (said,) = results(pool, slots)
        assert said.terminated.tolist() == [True, False, False]
        pool.reset(slots[:1])
        pool.step(slots[1:], np.array([0, 0]))
        (said,) = results(pool, slots)
        assert said.kind.tolist() == [Kind.RESET, Kind.STEP, Kind.STEP]


def test_pool_keeps_the_last_observation_until_the_slot_is_reset(pool: Pool) -> None:
    slots = reset_all(pool)
    pool.step(slots, np.array([1, 2, 0, 0]))
    said = results(pool, slots)
    assert column(said, "terminated").tolist() == [True, False, False, False]
    assert column(said, "truncated").tolist() == [False, True, False, False]
    assert column(said, "reward").tolist() == [0.5] * 4
    assert len(pool.wait(0.0).slots) == 0
    np.testing.assert_array_equal(pool.obs["count"], [[1, 1]] * 4)
    pool.reset(slots[:2])
    said = results(pool, slots[:2])
    assert not column(said, "terminated").any()
    assert not column(said, "truncated").any()
    assert column(said, "reward").tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(pool.obs["count"], [[2, 0], [2, 0], [1, 1], [1, 1]])


def test_pool_endings_of_episodes_carry_metrics_and_task(pool: Pool) -> None:
    slots = reset_all(pool)
    pool.step(slots, np.array([1, 2, 0, 0]))
    endings = {slot: ending for ready in results(pool, slots) for slot, ending in ready.endings.items()}
    assert endings == {0: EpisodeEnd(metrics={"luck": 0.25}, task="ended"), 1: EpisodeEnd(metrics={}, task="begun")}


def test_pool_wait_returns_nothing_when_its_time_is_over(pool: Pool) -> None:
    ready = pool.wait(0.01)
    assert len(ready.slots) == 0
    assert not ready.endings
    assert not ready.failures


def test_pool_wake_ends_the_wait_under_way_or_else_the_next(pool: Pool) -> None:
    pool.wake()
    assert len(pool.wait(PATIENCE_S * 1000).slots) == 0
    waker = threading.Timer(0.1, pool.wake)
    waker.start()
    assert len(pool.wait(PATIENCE_S * 1000).slots) == 0
    waker.join()
    assert len(pool.wait(0.01).slots) == 0


def test_a_closed_pool_can_be_woken_and_closed_again(pool: Pool) -> None:
    pool.close()
    pool.wake()
    pool.close()


def test_pool_refuses_a_command_that_the_slots_state_forbids(pool: Pool) -> None:
    with pytest.raises(ValueError, match=r"slots \[1\] must be READY, are \['EMPTY'\]"):
        pool.step(np.array([1]), np.array([0]))
    pool.reset(np.array([1]))
    with pytest.raises(ValueError, match=r"slots \[1\] must be EMPTY or READY, are \['BUSY'\]"):
        pool.reset(np.array([1]))
    results(pool, np.array([1]))


def test_episode_seeds_are_the_same_in_every_run_and_never_shared() -> None:
    seeds = [episode_seed(*key) for key in np.ndindex(3, 4, 8, 10)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert episode_seed(0, 0, 0, 0) == 1_839_233_791


def test_environments_of_a_pinned_actor_run_on_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.sched_getaffinity(0)
    monkeypatch.setenv(ALL_CORES, ",".join(map(str, cores)))
    pool = EnvPool(faulty(tmp_path), _schema(faulty(tmp_path)), WorkerConfig(num_envs=1), seed=SEED, actor_index=ACTOR)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with closing(pool):
            pool.start()
            assert os.sched_getaffinity(pool.pids[0]) == cores
    finally:
        os.sched_setaffinity(0, cores)
