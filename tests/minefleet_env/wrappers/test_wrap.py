"""Wrappers, one by one and together, around an environment whose observations say what it was asked."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import GrayscaleObservation, TransformObservation
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from minefleet.config import EnvConfig, WorkerConfig, WrappersConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.envs import make, schema_of
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool
from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.wrappers.action_mask_rows import allow_nothing, masks_of
from minefleet_env.wrappers.image_transforms import grey, resizer
from minefleet_env.wrappers.wrap import DEFAULTS, wrap

SIZE = (12, 8, 3)


def image(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, SIZE, np.uint8)


class Counting(gymnasium.Env[Any, Any]):
    """Shows how many steps were taken, as a picture, as numbers and as a category; ends after `end`, breaks after
    `breaks`."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict(
        {
            "pov": spaces.Box(0, 255, SIZE, np.uint8),
            "body": spaces.Dict({"steps": spaces.Box(-1, 100, (2,), np.float32), "time": spaces.Box(0, 9, (), int)}),
            "parts": spaces.Tuple([spaces.Discrete(50, start=5), spaces.MultiBinary(2)]),
            "word": spaces.Text(5),
            "action_mask": spaces.Box(0, 1, (3,), np.int8),
        }
    )

    def __init__(self, end: int = 1000, breaks: int = 1000) -> None:
        self.steps = 0
        self._end = end
        self._breaks = breaks

    def look(self) -> dict[str, Any]:
        number = self.steps
        return {
            "pov": image(number),
            "body": {"steps": np.array([number, -1], np.float32), "time": np.array(number)},
            "parts": (5 + number, np.array([number % 2, 1], np.int8)),
            "word": str(number),
            "action_mask": np.array([1, 0, number % 2], np.int8),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.look(), {"allowed": [1, 0, 1]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info = {"error": "broken"} if self.steps == self._breaks else {}
        return self.look(), float(self.steps), self.steps == self._end, False, {"at": self.steps, **info}


def wrapped(env: gymnasium.Env[Any, Any], **wrappers: Any) -> gymnasium.Env[Any, Any]:
    made: gymnasium.Env[Any, Any] = wrap(env, DEFAULTS | wrappers)
    return made


def test_wrap_without_wrappers_returns_the_environment_itself() -> None:
    anything = object()
    assert wrap(anything, DEFAULTS) is anything


def test_a_time_limit_truncates_and_counts_skipped_steps() -> None:
    env = wrapped(Counting(), time_limit=10, frame_skip=4)
    env.reset()
    seen = [env.step(0) for _ in range(3)]
    assert [(step[4]["at"], step[2], step[3]) for step in seen] == [
        (4, False, False),
        (8, False, False),
        (10, False, True),
    ]


@given(skip=st.integers(2, 6), end=st.integers(1, 20), breaks=st.integers(1, 20))
def test_skipped_frames_add_up_to_the_same_return_and_stop_where_the_episode_ends_or_breaks(
    skip: int, end: int, breaks: int
) -> None:
    env = wrapped(Counting(end, breaks), frame_skip=skip)
    env.reset()
    total, over, broken, steps = 0.0, False, False, 0
    while not over and not broken:
        obs, reward, over, _, info = env.step(1)
        total, steps, broken = total + float(reward), steps + 1, "error" in info
    last = min(end, breaks)
    assert total == sum(range(1, last + 1))
    assert obs["word"] == str(last)
    assert steps == -(-last // skip)


def test_grey_and_resized_images_lie_where_they_lay_and_the_rest_is_untouched() -> None:
    env = wrapped(Counting(), resize=[6, 4], grey=True)
    plain = Counting()
    obs, before = env.reset()[0], plain.reset()[0]
    assert env.observation_space["pov"] == spaces.Box(0, 255, (6, 4, 1), np.uint8)  # type: ignore[index]
    np.testing.assert_array_equal(obs["pov"], grey(resizer(6, 4)(image(0))))
    assert env.observation_space.contains(obs)
    for key in ("body", "parts", "word", "action_mask"):
        assert env.observation_space[key] == plain.observation_space[key]  # type: ignore[index]
        assert repr(obs[key]) == repr(before[key])


def test_grey_wrapper_equals_gymnasiums() -> None:
    def only_pov() -> gymnasium.Env[Any, Any]:
        return TransformObservation(Counting(), lambda obs: obs["pov"], Counting.observation_space["pov"])

    ours, theirs = wrapped(only_pov(), grey=True), GrayscaleObservation(only_pov(), keep_dim=True)
    np.testing.assert_array_equal(ours.reset()[0], theirs.reset()[0])
    assert ours.observation_space == theirs.observation_space


@given(
    height=st.integers(1, 4), width=st.integers(1, 4), factors=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 5), seed=st.integers(0, 99),
)  # fmt: skip
def test_resizer_takes_the_mean_of_the_pixels_that_one_covers(
    height: int, width: int, factors: tuple[int, int], channels: int, seed: int
) -> None:
    high, wide = factors
    large = np.random.default_rng(seed).integers(0, 256, (height * high, width * wide, channels), np.uint8)
    mean = large.reshape(height, high, width, wide, channels).mean((1, 3))
    small = resizer(height, width)(large)
    assert small.dtype == np.uint8
    np.testing.assert_allclose(small, mean, atol=1)


@pytest.mark.parametrize("wrong", [np.zeros((12, 9, 3), np.uint8), np.zeros(SIZE, np.float32), None])
@pytest.mark.parametrize("wrappers", [{"resize": [4, 4]}, {"grey": True}])
def test_an_image_that_is_none_of_its_space_is_not_made_to_look_right(wrong: Any, wrappers: dict[str, Any]) -> None:
    space = Counting.observation_space["pov"]
    env = wrapped(TransformObservation(Counting(), lambda obs: wrong, space), **wrappers)
    with pytest.raises(EnvError, match=r"the image '' must be uint8 \(12, 8, 3\), got"):
        env.reset()


def test_frames_are_stacked_along_the_channels_the_oldest_first_and_never_across_episodes() -> None:
    env = wrapped(Counting(), frame_stack=3)
    first = env.reset()[0]
    np.testing.assert_array_equal(first["pov"], np.concatenate(3 * [image(0)], -1))
    for _ in range(4):
        obs = env.step(0)[0]
    np.testing.assert_array_equal(obs["pov"], np.concatenate([image(2), image(3), image(4)], -1))
    np.testing.assert_array_equal(obs["body"]["steps"], [2, -1, 3, -1, 4, -1])
    np.testing.assert_array_equal(obs["body"]["time"], [2, 3, 4])
    np.testing.assert_array_equal(obs["action_mask"], [1, 0, 0])
    assert (obs["word"], obs["parts"][0], obs["parts"][1].tolist()) == ("4", 9, [0, 1])
    assert env.observation_space.contains(obs)
    again = env.reset()[0]
    np.testing.assert_array_equal(again["pov"], first["pov"])


class Refilling(gymnasium.Env[Any, Any]):
    """Shows the number of the step, in one array that it fills anew each time, as many simulators do."""

    observation_space, action_space = spaces.Box(0, 255, (1,), np.float32), spaces.Discrete(2)

    def __init__(self) -> None:
        self._buffer = np.zeros(1, np.float32)

    def reset(self, **_: Any) -> Any:
        self._buffer[:] = 0
        return self._buffer, {}

    def step(self, action: int) -> Any:
        self._buffer += 1
        return self._buffer, 1.0, False, False, {}


def test_frame_stack_of_an_environment_that_refills_its_array_keeps_the_old_frames() -> None:
    env = wrapped(Refilling(), frame_stack=3)
    env.reset()
    seen = [env.step(0)[0].tolist() for _ in range(3)]
    assert seen == [[0, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_a_mask_from_info_joins_a_dict_observation_and_wraps_any_other() -> None:
    taxi = make(EnvConfig(id="Taxi-v4", wrappers=WrappersConfig(action_mask="action_mask")))
    obs, info = taxi.reset(seed=3)
    assert set(obs) == {"obs", "action_mask"}
    np.testing.assert_array_equal(obs["action_mask"], info["action_mask"])
    assert taxi.observation_space.contains(obs)
    obs, *_, info = taxi.step(int(np.flatnonzero(info["action_mask"])[0]))
    np.testing.assert_array_equal(obs["action_mask"], info["action_mask"])
    assert schema_of(taxi).obs["action_mask"].shape == (6,)


class Telling(gymnasium.Env[Any, Any]):
    """Tells the mask in its info, except at the end."""

    observation_space = spaces.Dict({"x": spaces.Box(0, 1, (1,))})
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3),
            "keys": spaces.MultiDiscrete([2, 3]),
            "camera": spaces.Box(-1, 1, (2,)),
            "pair": spaces.Tuple([spaces.MultiBinary(1), spaces.Box(-1, 1)]),
        }
    )
    mask: Any = {"move": (1, 0, 1), "keys": (np.array([True, False]), np.array([0, 5, 0])), "pair": ([0, 1],)}  # noqa: RUF012

    def __init__(self, tells: bool = True) -> None:
        self._tells = tells

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"x": np.zeros(1, np.float32)}, {"allowed": self.mask} if self._tells else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"x": np.zeros(1, np.float32)}, 0.0, True, False, {}


def test_a_mask_from_info_has_an_element_per_category_of_every_part_that_has_some() -> None:
    env = wrapped(Telling(), action_mask="allowed")
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    mask = obs["action_mask"]
    assert {key: mask[key].tolist() for key in ("keys", "move")} == {"keys": [1, 0, 0, 1, 0], "move": [1, 0, 1]}
    assert mask["pair"]["0"].tolist() == [0, 1]
    last = env.step(env.action_space.sample())[0]["action_mask"]
    assert {key: last[key].tolist() for key in ("keys", "move")} == {"keys": 5 * [1], "move": 3 * [1]}


def test_info_without_the_mask_is_refused_with_what_it_has() -> None:
    with pytest.raises(EnvError, match=r"info lacks 'legal'; it has \['allowed'\]"):
        wrapped(Telling(), action_mask="legal").reset()


@pytest.mark.parametrize(
    ("env", "wrappers", "message"),
    [
        (Counting(), {"action_mask": "m"}, "has an 'action_mask' already"),
        (gymnasium.make("Pendulum-v1"), {"action_mask": "m"}, "no categories to mask"),
        (gymnasium.make("Pendulum-v1"), {"grey": True}, r"wrappers\.grey: Box.* has no images"),
        (gymnasium.make("Pendulum-v1"), {"resize": [4, 4]}, r"wrappers\.resize: Box.* has no images"),
        (object(), {"frame_skip": 2}, r"wrap a gymnasium\.Env, and this is a object"),
    ],
)
def test_a_wrapper_that_does_not_fit_the_environment_is_refused_by_key(env: Any, wrappers: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        wrapped(env, **wrappers)


def test_an_interpreter_without_gymnasium_refuses_wrappers_and_needs_none_otherwise() -> None:
    code = """
import sys
sys.modules["gymnasium"] = None
from minefleet_env.wrappers.wrap import DEFAULTS, wrap
assert wrap(sys, DEFAULTS) is sys
wrap(sys, {**DEFAULTS, "frame_skip": 2})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "RefusedError: env.wrappers need gymnasium 1.0 or newer" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("time_limit=-1", r"env\.wrappers\.time_limit must be >= 0, got -1"),
        ("frame_skip=0", r"env\.wrappers\.frame_skip must be >= 1, got 0"),
        ("action_chunk=0", r"env\.wrappers\.action_chunk must be >= 1, got 0"),
        ("frame_stack=0", r"env\.wrappers\.frame_stack must be >= 1, got 0"),
        ("reward_scale=0", r"env\.wrappers\.reward_scale must be > 0, got 0"),
        ("reward_clip=-1", r"env\.wrappers\.reward_clip must be >= 0, got -1"),
        ("resize=[64]", r"env\.wrappers\.resize must be \[height, width\], both >= 1, got \[64\]"),
        ("resize=[0,64]", r"both >= 1, got \[0, 64\]"),
    ],
)
def test_wrapper_settings_that_are_impossible_are_refused_by_key_and_value(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("cartpole", [f"env.wrappers.{setting}"])


@given(data=st.data())
def test_masks_allow_nothing_when_one_part_of_them_has_nothing_left(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    parts = [data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in counts]
    mask = np.array([one for part in parts for one in part], np.int8)
    expected = not all(any(part) for part in parts)
    assert allow_nothing(masks_of({"action_mask": mask}, {"": counts})) == expected
    rows: dict[str, NDArray[Any]] = {
        "action_mask/a": np.ones(sum(counts)),
        "action_mask/b/c": mask,
        "b": mask,
        "a": np.zeros(1),
    }
    assert allow_nothing(masks_of(rows, {"a": counts, "b/c": counts, "d": (), "b": (9,)})) == expected


class Seen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Only the picture; the mask is in the info of every step."""

    def __init__(self) -> None:
        super().__init__(TransformObservation(Counting(), lambda obs: obs["pov"], Counting.observation_space["pov"]))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, info | {"allowed": [1, 0, 1]}


class MovesLeft(gymnasium.Env[Any, Any]):
    """Each move may be made once; the episode ends when none is left, or, if it is not `fair`, does not."""

    observation_space = spaces.Dict({"x": spaces.Box(0, 1, (1,)), "action_mask": spaces.Box(0, 1, (2,), np.int8)})
    action_space = spaces.Discrete(2)

    def __init__(self, fair: bool = True) -> None:
        self._fair = fair

    def look(self) -> dict[str, Any]:
        return {"x": np.zeros(1, np.float32), "action_mask": self.left.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = np.ones(2, np.int8)
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left[action] = 0
        return self.look(), 0.0, self._fair and not self.left.any(), False, {}


@pytest.mark.parametrize("make_pool", [InlinePool, EnvPool])
def test_pools_play_through_the_wrappers(make_pool: Callable[..., Pool]) -> None:
    wrappers = WrappersConfig(time_limit=5, frame_skip=2, frame_stack=2, action_mask="allowed", resize=[3, 2])
    config = EnvConfig(generator=f"{__file__}:Seen", wrappers=wrappers)
    with closing(make(config)) as env:
        schema = schema_of(env)
    assert schema.obs["obs"].shape == (3, 2, 6)
    pool = make_pool(config, schema, WorkerConfig(num_envs=1), seed=0, actor_index=0)
    pool.start()
    slot = np.array([0])
    pool.reset(slot)
    assert pool.wait(60.0).kind.tolist() == [Kind.RESET]
    for reward, truncated in ((1 + 2, False), (3 + 4, False), (5, True)):
        pool.step(slot, np.array([0]))
        ready = pool.wait(60.0)
        assert (ready.reward.tolist(), ready.truncated.tolist()) == ([reward], [truncated])
    small = resizer(3, 2)
    np.testing.assert_array_equal(pool.obs["obs"][0], np.concatenate([small(image(4)), small(image(5))], -1))
    assert pool.obs["action_mask"].tolist() == [[1, 0, 1]]
    pool.close()


@pytest.mark.parametrize(("fair", "expected"), [(True, Kind.STEP), (False, Kind.FAILED)])
def test_a_mask_that_allows_nothing_is_a_failure_unless_the_episode_is_over(fair: bool, expected: Kind) -> None:
    config = EnvConfig(generator=f"{__file__}:MovesLeft", kwargs={"fair": fair})
    schema = schema_of(MovesLeft())
    pool = InlinePool(config, schema, WorkerConfig(num_envs=1), seed=0, actor_index=0)
    pool.start()
    slot = np.array([0])
    pool.reset(slot)
    assert pool.wait(0.0).kind.tolist() == [Kind.RESET]
    for action, kind in ((0, Kind.STEP), (1, expected)):
        pool.step(slot, np.array([action]))
        ready = pool.wait(0.0)
        assert ready.kind.tolist() == [kind]
    if not fair:
        assert ready.failures[0].kind == "contract"
        assert "'action_mask' allows no action" in ready.failures[0].text
    pool.close()
