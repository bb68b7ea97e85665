"""Environments in batches: as those that play alone, and failing together."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.minefleet_actor import batched_env
from tests.minefleet_actor.faulty_env import Act

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.core.tree import flatten
from minefleet.envs import make, schema_of
from minefleet.launch.env_policy_check import describe_environment
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool, Ready
from minefleet_actor.pool.episode_seed import episode_seed

BATCHED = Path(batched_env.__file__)
MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")
SLOTS, IN_A_PROCESS = 5, 3
STEPS = 60
SEED, ACTOR = 3, 2
PATIENCE_S = 60.0


def batch_of(name: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig(generator=f"{BATCHED}:{name}", batched=True, kwargs=kwargs)


def pool_of(config: EnvConfig, kind: type[Pool] = EnvPool, **worker: Any) -> Pool:
    with closing(make(config)) as env:
        schema = schema_of(env)
    settings = WorkerConfig(**{"num_envs": SLOTS, "envs_per_process": IN_A_PROCESS} | worker)
    pool = kind(config, schema, settings, seed=SEED, actor_index=ACTOR)
    pool.start()
    return pool


@pytest.fixture
def pools() -> Iterator[Any]:
    opened: list[Pool] = []

    def open_pool(*arguments: Any, **worker: Any) -> Pool:
        opened.append(pool_of(*arguments, **worker))
        return opened[-1]

    yield open_pool
    for pool in opened:
        pool.close()


def rows(tree: Any, slot: int) -> list[Any]:
    return [np.array(leaf[slot]).tolist() for leaf in flatten(tree).values()]


def actions(slot: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(slot)
    while True:
        yield {"turn": int(random.integers(4)), "speed": random.uniform(-1, 1, 2).astype(np.float32)}


def played_by(pool: Pool) -> dict[int, list[Any]]:
    """The first `STEPS` events of each slot: first observations, and steps with their results."""
    seen: dict[int, list[Any]] = {slot: [] for slot in range(SLOTS)}
    drawn = {slot: actions(slot) for slot in seen}
    for slot in seen:
        pool.reset(np.array([slot]))
    while min(map(len, seen.values())) < STEPS:
        ready = pool.wait(PATIENCE_S)
        assert len(ready.slots), "nothing happened"
        assert not ready.failures
        for at, slot in enumerate(ready.slots.tolist()):
            obs = rows(pool.obs, slot)
            if ready.kind[at] == Kind.RESET:
                seen[slot].append((obs, ready.tasks[slot]))
            else:
                ending = ready.endings.get(slot)
                ends = bool(ready.terminated[at]), bool(ready.truncated[at])
                seen[slot].append((obs, float(ready.reward[at]), *ends, ending and dict(ending.metrics)))
            if ready.kind[at] == Kind.STEP and (ready.terminated[at] or ready.truncated[at]):
                pool.reset(np.array([slot]))
            else:
                action = next(drawn[slot])
                pool.step(np.array([slot]), {key: np.array([value]) for key, value in action.items()})
    return {slot: events[:STEPS] for slot, events in seen.items()}


def slowly(slot: int, seed: int) -> list[Any]:
    """The same of an environment alone."""
    env, drawn = batched_env.Wander(), actions(slot)
    events: list[Any] = []

    def shown(obs: Any) -> list[Any]:
        return [obs["at"].tolist(), obs["parts"][0] - 5]

    obs, info = env.reset(seed=seed)
    events.append((shown(obs), info["task"]))
    while len(events) < STEPS:
        action = next(drawn)
        obs, reward, terminated, truncated, info = env.step(action | {"turn": action["turn"] + 1})
        is_over = terminated or truncated
        metrics = info["metrics"] if is_over else None
        events.append((shown(obs), float(np.float32(reward)), terminated, truncated, metrics))
        if is_over:
            obs, info = env.reset()
            events.append((shown(obs), info["task"]))
    return events[:STEPS]


@pytest.mark.parametrize("kind", [EnvPool, InlinePool])
@pytest.mark.parametrize("mode", MODES)
def test_batch_in_each_mode_plays_what_environments_alone_play(pools: Any, mode: str, kind: type[Pool]) -> None:
    seen = played_by(pools(batch_of("wander", mode=mode), kind))
    for slot, events in seen.items():
        assert events == slowly(slot, episode_seed(SEED, ACTOR, slot, 0))
        steps = [event for event in events if len(event) > 2]
        assert any(truncated and not terminated for _, _, terminated, truncated, _ in steps), "no truncation was seen"
        assert any(terminated for _, _, terminated, _, _ in steps)


def test_inline_batch_whose_reset_waits_for_other_rows_does_not_spin(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pools(batch_of("wander", mode="NEXT_STEP"), InlinePool)
    slots = np.arange(SLOTS)
    pool.reset(slots)
    while not np.isin(slots, pool.wait(PATIENCE_S).slots).all():
        pass
    pool.reset(slots[:1])  # The others are given nothing: of such a batch either all go on or none.
    looks = count()
    monkeypatch.setattr(pool, "_run", lambda *_: next(looks) < 0)
    assert not len(pool.wait(0.2).slots)
    assert next(looks) <= 2


def test_batch_whose_generator_takes_a_seed_is_made_with_the_first_slots(pools: Any) -> None:
    seen = played_by(pools(batch_of("OneSeed")))
    for slot, events in seen.items():
        first = slot - slot % IN_A_PROCESS
        assert events == slowly(slot, episode_seed(SEED, ACTOR, first, 0) + slot - first)


def turn(pool: Pool, acts: list[int] | None = None) -> dict[int, tuple[Kind, str]]:
    """Steps all slots, or resets them; what became of each, with the kind of its failure."""
    slots = np.arange(pool.num_slots)
    if acts is None:
        pool.reset(slots)
    else:
        pool.step(slots, np.array(acts))
    return outcomes(pool, set(slots.tolist()))


def outcomes(pool: Pool, slots: set[int]) -> dict[int, tuple[Kind, str]]:
    seen: dict[int, tuple[Kind, str]] = {}
    while set(seen) != slots:
        ready: Ready = pool.wait(PATIENCE_S)
        assert len(ready.slots), "nothing happened"
        for at, slot in enumerate(ready.slots.tolist()):
            seen[slot] = Kind(ready.kind[at]), ready.failures[slot].kind if slot in ready.failures else ""
    return seen


RESET, STEP = (Kind.RESET, ""), (Kind.STEP, "")


def test_batch_that_resets_rows_alone_loses_only_the_row_with_nonsense(pools: Any, tmp_path: Path) -> None:
    pool = pools(batch_of("faulty", directory=str(tmp_path), mode="DISABLED"), num_envs=3)
    assert turn(pool) == dict.fromkeys(range(3), RESET)
    assert turn(pool, [Act.GO_ON, Act.NAN_REWARD, Act.GO_ON]) == {0: STEP, 1: (Kind.FAILED, "contract"), 2: STEP}
    pool.step(np.array([0, 2]), np.zeros(2, np.int64))
    pool.reset(np.array([1]))
    assert outcomes(pool, {1}) == {1: RESET}
    pool.step(np.array([1]), np.zeros(1, np.int64))
    assert outcomes(pool, {0, 1, 2}) == dict.fromkeys(range(3), STEP)
    assert pool.obs["count"][:, 1].tolist() == [2, 1, 2], "the neighbours have gone on with their episodes"


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize(
    ("act", "kind"), [(Act.NAN_REWARD, "contract"), (Act.RAISE, "exception"), (Act.EXIT, "exit"), (Act.HANG, "hang")]
)
def test_batch_that_fails_takes_its_rows_with_it_and_comes_back(
    pools: Any, tmp_path: Path, mode: str, act: Act, kind: str
) -> None:
    pool = pools(
        batch_of("faulty", directory=str(tmp_path), mode=mode), num_envs=4, envs_per_process=2, step_timeout_s=2.0
    )
    assert turn(pool) == dict.fromkeys(range(4), RESET)
    before = pool.pids
    failed = (Kind.FAILED, kind)
    assert turn(pool, [Act.GO_ON, act, Act.GO_ON, Act.GO_ON]) == {0: failed, 1: failed, 2: STEP, 3: STEP}
    pool.reset(np.array([0, 1]))
    assert outcomes(pool, {0, 1}) == {0: RESET, 1: RESET}
    assert turn(pool, [Act.GO_ON] * 4) == dict.fromkeys(range(4), STEP)
    assert pool.obs["count"].tolist() == [[1, 1], [1, 1], [1, 2], [1, 2]]
    assert (pool.pids[0] != before[0], pool.pids[1] == before[1]) == (True, True)


@pytest.mark.parametrize("mode", MODES)
def test_batch_of_this_process_that_fails_is_made_anew(pools: Any, tmp_path: Path, mode: str) -> None:
    pool = pools(batch_of("faulty", directory=str(tmp_path), mode=mode), InlinePool, num_envs=2)
    assert turn(pool) == dict.fromkeys(range(2), RESET)
    for _ in range(2):
        assert turn(pool, [Act.GO_ON, Act.RAISE]) == dict.fromkeys(range(2), (Kind.FAILED, "exception"))
        assert turn(pool) == dict.fromkeys(range(2), RESET)
        assert pool.obs["count"].tolist() == [[1, 0], [1, 0]]
        assert turn(pool, [Act.GO_ON, Act.GO_ON]) == dict.fromkeys(range(2), STEP)


@pytest.mark.parametrize("kind", [EnvPool, InlinePool])
def test_batch_that_is_seeded_when_it_is_made_is_made_once_and_reset_without_a_seed(
    pools: Any, tmp_path: Path, kind: type[Pool]
) -> None:
    pool = pools(batch_of("Diary", directory=str(tmp_path)), kind, num_envs=2, envs_per_process=2)
    assert turn(pool) == dict.fromkeys(range(2), RESET)
    _, *made = (tmp_path / "made").read_text().split()  # The first is of `pool_of`, which asks for the spaces.
    assert made == [str(episode_seed(SEED, ACTOR, 0, 0))]
    assert turn(pool, [Act.NAN_REWARD, Act.GO_ON]) == {0: (Kind.FAILED, "contract"), 1: STEP}
    pool.reset(np.array([0]))
    pool.step(np.array([1]), np.zeros(1, np.int64))
    assert outcomes(pool, {0}) == {0: RESET}


def test_info_for_all_rows_of_a_batch_is_that_of_each(pools: Any) -> None:
    pool = pools(batch_of("Common"), InlinePool)
    pool.reset(np.arange(SLOTS))
    assert set(pool.wait(PATIENCE_S).tasks.values()) == {"dig"}


def test_batch_of_one_that_is_seeded_when_it_is_made_is_reset_without_a_seed(tmp_path: Path) -> None:
    with closing(make(batch_of("Diary", directory=str(tmp_path)))) as env:
        assert env.reset(seed=SEED)[0]["mode"] == 6


def test_batch_whose_process_is_killed_comes_back(pools: Any, tmp_path: Path) -> None:
    pool = pools(batch_of("faulty", directory=str(tmp_path), mode="NEXT_STEP"), num_envs=2, envs_per_process=2)
    turn(pool)
    os.kill(pool.pids[0], signal.SIGKILL)
    assert outcomes(pool, {0, 1}) == dict.fromkeys(range(2), (Kind.FAILED, "exit"))
    assert turn(pool) == dict.fromkeys(range(2), RESET)
    assert turn(pool, [Act.END, Act.GO_ON]) == dict.fromkeys(range(2), STEP)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("numberless", "must take num_envs"),
        ("single", "made a Wander, expected a gymnasium.vector.VectorEnv"),
        ("one_too_many", r"made num_envs=4 environments for a process of 3, .*envs_per_process"),
        ("Silent", r"must say how its environments are reset: metadata\['autoreset_mode'\] is None"),
    ],
)
def test_preflight_of_a_batch_that_cannot_be_played_says_why(name: str, message: str) -> None:
    per_process = f"rollout_config.worker_config.envs_per_process={IN_A_PROCESS}"
    with pytest.raises(ConfigError, match=message):
        describe_environment(
            load("cartpole", ["env.id=", f"env.generator={BATCHED}:{name}", "env.batched=true", per_process])
        )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.wrappers.frame_stack=4", "env.wrappers.frame_stack wraps single environments.*gymnasium.wrappers.vector"),
        ("env.wrappers.resize=[8, 8]", "env.wrappers.resize wraps single environments"),
        ("env.tasks={a: 1}", "env.tasks cannot be had with env.batched"),
        ("rollout_config.worker_config.hosted=true", "hosted cannot be had with env.batched"),
        ("rollout_config.worker_config.deterministic=true", "deterministic cannot be had with env.batched"),
        ("rollout_config.worker_config.restart_interval=60", "restart_interval cannot be had with env.batched"),
        ("env.generator=", "env.batched needs env.generator"),
    ],
)
def test_config_of_a_batch_refuses_what_is_for_single_environments(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("cartpole", ["env.id=", f"env.generator={BATCHED}:wander", "env.batched=true", override])
