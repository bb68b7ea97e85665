"""Several steps per decision, against the same steps taken one by one."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tests.minefleet_actor.hosted import PlayedElsewhere
from tests.minefleet_env.wrappers import chunk_envs
from tests.minefleet_env.wrappers.chunk_envs import Diary, Options

from minefleet.config import EnvConfig, WorkerConfig, WrappersConfig
from minefleet.core.tree import Tree, tree_map
from minefleet.envs import make, schema_of
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool, Ready
from minefleet_env.errors import RefusedError
from minefleet_env.wrappers.wrap import DEFAULTS, wrap

ONE = np.array([0])
DISCOUNT = 0.75


def wrapped(env: gymnasium.Env[Any, Any], **wrappers: Any) -> gymnasium.Env[Any, Any]:
    made: gymnasium.Env[Any, Any] = wrap(env, DEFAULTS | wrappers)
    return made


def part(action: Any, index: int) -> Any:
    """The action of step `index`, by hand."""
    first, second = action["inner"]
    return {
        "dig": int(action["dig"][index]),
        "inner": (first[index], second[index]),
        "keys": action["keys"][index],
        "speed": np.asarray(action["speed"][index]),
    }


@given(
    chunk=st.integers(2, 5),
    end=st.integers(1, 25),
    cut=st.integers(1, 25),
    breaks=st.integers(1, 40),
    skip=st.integers(1, 3),
    limit=st.integers(0, 30),
    stack=st.integers(1, 3),
)
def test_action_chunk_equals_its_actions_taken_one_by_one(
    chunk: int, end: int, cut: int, breaks: int, skip: int, limit: int, stack: int
) -> None:
    others = {"frame_skip": skip, "time_limit": limit, "frame_stack": stack}
    bare, slow_bare = Diary(end, cut, breaks), Diary(end, cut, breaks)
    env, slow = wrapped(bare, action_chunk=chunk, **others), wrapped(slow_bare, **others)
    env.action_space.seed(end)
    env.reset(), slow.reset()
    over = False
    while not over:
        action = env.action_space.sample()
        obs, reward, terminated, truncated, info = env.step(action)
        rewards = []
        for index in range(chunk):
            slow_obs, slow_reward, *ends, slow_info = slow.step(part(action, index))
            rewards.append(float(slow_reward))
            if any(ends) or "error" in slow_info:
                break
        np.testing.assert_array_equal(obs, slow_obs)
        assert (reward, terminated, truncated) == (sum(rewards), *ends)
        assert info == {**slow_info, "step_rewards": rewards}
        over = terminated or truncated or "error" in info
    assert repr(bare.asked) == repr(slow_bare.asked)


def test_frame_skip_counts_a_repeated_action_as_one_step() -> None:
    env = wrapped(Diary(), frame_skip=4)
    env.reset()
    assert env.step(Diary.action_space.sample())[4] == {"at": 4}


@given(skip=st.integers(2, 4), asked=st.lists(st.integers(1, 4), min_size=1, max_size=5), end=st.integers(1, 40))
def test_durations_of_the_environment_add_up_where_an_action_is_repeated(skip: int, asked: list[int], end: int) -> None:
    env = wrapped(Options(end=end), frame_skip=skip)
    env.reset()
    number = count(1)
    for action in asked:
        _, reward, over, _, info = env.step(action)
        last = next(number)
        expected = [float(last), *(float(next(number)) for _ in range(len(info["step_rewards"]) - 1))]
        assert info["step_rewards"] == expected
        assert len(expected) == min(skip * action, end - last + 1)
        assert reward == sum(expected)
        if over:
            break


class Masked(Diary):
    """Says what is allowed."""

    observation_space = spaces.Dict({"action_mask": spaces.Box(0, 1, (3,), np.int8)})  # type: ignore[assignment]


class Odd(Diary):
    """Acts by a graph."""

    action_space = spaces.Dict({"plan": spaces.Graph(spaces.Discrete(2), None)})


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Masked(), r"action_chunk: 'action_mask' says what is allowed next"),
        (Odd(), r"action_chunk: the action 'plan' is a Graph space"),
    ],
)
def test_action_chunk_of_other_actions_is_refused(env: gymnasium.Env[Any, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        wrapped(env, action_chunk=2)


@contextmanager
def pool_of(make_pool: Callable[..., Pool], config: EnvConfig) -> Iterator[Pool]:
    with closing(make(config)) as env:
        schema = schema_of(env)
    pool = make_pool(config, schema, WorkerConfig(num_envs=1), seed=0, actor_index=0, discount=DISCOUNT)
    pool.start()
    with closing(pool):
        yield pool


def answer(pool: Pool, kind: Kind) -> Ready:
    ready = pool.wait(60.0)
    assert ready.kind.tolist() == [kind], ready.failures
    return ready


def slow_total(rewards: list[float]) -> float:
    return sum(DISCOUNT**index * reward for index, reward in enumerate(rewards))


@pytest.mark.parametrize("make_pool", [InlinePool, EnvPool, PlayedElsewhere])
def test_every_pool_discounts_within_a_chunk_and_reports_its_sum_and_duration(make_pool: Callable[..., Pool]) -> None:
    config = EnvConfig(
        generator=f"{chunk_envs.__file__}:Diary", kwargs={"cut": 10}, wrappers=WrappersConfig(action_chunk=4)
    )
    with pool_of(make_pool, config) as pool:
        assert pool._schema["action"]["dig"]["categories"] == [3, 3, 3, 3]
        pool.reset(ONE)
        answer(pool, Kind.RESET)
        for squares in ([1.0, 4.0, 9.0, 16.0], [25.0, 36.0, 49.0, 64.0], [81.0, 100.0]):
            pool.step(ONE, zero_action(pool))
            ready = answer(pool, Kind.STEP)
            assert ready.reward.tolist() == [sum(squares)]
            assert ready.duration.tolist() == [len(squares)]
            assert math.isclose(ready.discounted_reward[0], slow_total(squares))
        assert ready.truncated.tolist() == [True]


def zero_action(pool: Pool) -> Tree:
    return tree_map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), dict(pool._slot_states.arrays.action))


@pytest.mark.parametrize(
    ("make_pool", "name", "batched"),
    [(InlinePool, "Options", False), (PlayedElsewhere, "Options", False), (InlinePool, "batch", True)],
)
def test_a_policy_may_choose_how_long_the_environment_goes_on(
    make_pool: Callable[..., Pool], name: str, batched: bool
) -> None:
    config = EnvConfig(generator=f"{chunk_envs.__file__}:{name}", kwargs={"end": 8}, batched=batched)
    with pool_of(make_pool, config) as pool:
        pool.reset(ONE)
        answer(pool, Kind.RESET)
        for chosen, rewards in ((3, [1.0, 2.0, 3.0]), (1, [4.0]), (2, [5.0, 6.0]), (4, [7.0, 8.0])):
            pool.step(ONE, np.array([chosen - 1]))
            ready = answer(pool, Kind.STEP)
            assert (ready.reward.tolist(), ready.duration.tolist()) == ([sum(rewards)], [len(rewards)])
            assert math.isclose(ready.discounted_reward[0], slow_total(rewards))
        assert ready.terminated.tolist() == [True]


@pytest.mark.parametrize(
    "says",
    ["[]", "3", "[[1.0]]", "[0.5, 0.4]", "[float('nan')]", "['a lot']", "[None]", "{'time': 1}", "[2e39, 1 - 2e39]"],
)
def test_step_rewards_that_are_none_are_a_failure_that_says_so(says: Any) -> None:
    with pool_of(InlinePool, EnvConfig(generator=f"{chunk_envs.__file__}:Options", kwargs={"says": says})) as pool:
        pool.reset(ONE)
        answer(pool, Kind.RESET)
        pool.step(ONE, np.array([0]))
        failure = answer(pool, Kind.FAILED).failures[0]
        assert failure.kind == "contract"
        assert "reward" in failure.text
