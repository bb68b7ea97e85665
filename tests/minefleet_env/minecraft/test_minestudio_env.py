"""MineStudio's simulator as the fleet sees it: an environment like any other."""

import io
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minefleet_env import shared_slot_arrays
from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.make_env import make
from minefleet_env.minecraft import minestudio_jar_path
from minefleet_env.minecraft.minestudio_env import Simulator
from minefleet_env.space_conversion import schema_of, writer
from minefleet_env.wrappers.wrap import DEFAULTS


class JudgeResetCallback:
    """The part of MineStudio's that can be seen from outside."""

    def __init__(self, time_limit: int) -> None:
        self.time_limit = time_limit


class MinecraftSim(gymnasium.Env[Any, Any]):
    """Has the traps of MineStudio's, and no engine.

    Args:
        limit: Of time, by a callback.
        end: What `step` says, by number of the step: an info with `terminated` and `truncated`.
        height: Of the image; MineStudio takes the width first.
    """

    action_type = "agent"

    def __init__(
        self, limit: int = 0, end: Mapping[int, Mapping[str, Any]] | None = None, height: int = 4, kind: str = "agent"
    ) -> None:
        self.seed = 0
        self.obs_size, self.action_type = (4, height), kind
        self.callbacks = [JudgeResetCallback(limit)] if limit else []
        self.taken: list[Any] = []
        self._end = end or {}
        self.observation_space = spaces.Dict({"image": spaces.Box(0, 255, (height, 4, 3), np.uint8)})
        agent: dict[str, Any] = {"buttons": spaces.MultiDiscrete([8641]), "camera": spaces.MultiDiscrete([121])}
        own: dict[str, Any] = {"attack": spaces.Discrete(2), "camera": spaces.Box(-180, 180, (2,), np.float32)}
        self.action_space = spaces.Dict(agent if kind == "agent" else own)

    def reset(self) -> Any:  # type: ignore[override]
        self._steps, self.drawn = 0, (random.random(), np.random.rand(), self.np_random.random())
        return self._obs(), {"inventory": defaultdict(lambda: 0)}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self.taken.append(dict(action))
        action.clear()
        end: dict[str, Any] = {"terminated": False, "truncated": False, "health": np.array(20.0)}
        end.update(self._end.get(self._steps, {}))
        limit = bool(self.callbacks) and self._steps >= self.callbacks[0].time_limit
        info = {"inventory": defaultdict(lambda: 0), "health": end["health"], **end.get("info", {})}
        return self._obs(), 1, end["terminated"] or limit, end["truncated"], info

    def _obs(self) -> dict[str, Any]:
        return {"image": np.full((4, 4, 3), self._steps, np.uint8), "task": "none"}

    def close(self) -> None:
        self.taken.append("closed")


class Derived(MinecraftSim):
    """A simulator of somebody's own."""


class Segments:
    """A callback that observes, and says of what space that is."""

    observation_space: ClassVar = {"segment": spaces.Dict({"obj_id": spaces.Box(-1, 8, (), np.int64)})}


class Observing(MinecraftSim):
    """A simulator of somebody's own that declares what it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "task": spaces.Text(8)})
        self.callbacks: list[Any] = [JudgeResetCallback(9), Segments()]
        self.segment: Any = {"obj_id": -1}

    def _obs(self) -> dict[str, Any]:
        return {**super()._obs(), "segment": self.segment}


def simulator(**kwargs: Any) -> Any:
    return Derived(**kwargs)


def asks() -> Any:
    return input("Shall I?")


def made(**kwargs: Any) -> Any:
    return make(
        {"id": "", "generator": f"{__name__}:simulator", "kwargs": kwargs, "wrappers": DEFAULTS, "batched": False}
    )


def played(env: Any, steps: int) -> Any:
    env.reset(seed=3)
    for _ in range(steps):
        result = env.step({"buttons": 5, "camera": 60})
    return result


def test_a_simulator_is_known_by_a_base_of_its_class_and_shows_images_and_takes_categories() -> None:
    env = made()
    schema = schema_of(env)
    assert {path: leaf["shape"] for path, leaf in schema["obs"].items()} == {"image": [4, 4, 3]}
    assert {path: leaf["categories"] for path, leaf in schema["action"].items()} == {"buttons": [8641], "camera": [121]}


def test_simulator_shows_what_it_or_a_callback_declares() -> None:
    env = Simulator(Observing())
    schema = schema_of(env)
    assert {path: leaf["kind"] for path, leaf in schema["obs"].items()} == {
        "image": "box",
        "segment/obj_id": "box",
        "task": "text",
    }
    obs, _ = env.reset()
    assert (obs["segment"], obs["task"]) == ({"obj_id": -1}, "none")
    rows = {path: array[0, ...] for path, array in shared_slot_arrays.private(schema, 1).obs.items()}
    write = writer(env.observation_space, schema["obs"], rows)
    write(obs)
    assert rows["segment/obj_id"] == -1
    env._sim.segment = {}
    with pytest.raises(EnvError, match="the observation lacks 'segment/obj_id'"):
        write(env.step({"buttons": 5, "camera": 60})[0])


def test_simulator_hides_observations_that_nobody_declares_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    env = made()
    assert set(env.reset()[0]) == {"image"}
    env.step({"buttons": 5, "camera": 60})
    (said,) = caplog.messages
    assert said.startswith("the policy does not see task")


def test_simulator_gets_actions_as_arrays_of_one_and_ours_are_not_touched() -> None:
    env, action = made(), {"buttons": 5, "camera": 60}
    env.reset()
    env.step(action)
    assert action == {"buttons": 5, "camera": 60}
    assert {name: array.shape for name, array in env._sim.taken[0].items()} == {"buttons": (1,), "camera": (1,)}
    assert {name: array.item() for name, array in env._sim.taken[0].items()} == action


@pytest.mark.parametrize(
    "action", [{"buttons": -1, "camera": 60}, {"buttons": 8641, "camera": 60}, {"buttons": 5, "camera": -1}]
)
def test_simulator_refuses_an_action_out_of_range_by_name(action: dict[str, int]) -> None:
    env = made()
    env.reset()
    with pytest.raises(ValueError, match=r"(buttons|camera) must be an integer from 0 to (8640|120), got"):
        env.step(action)
    assert env._sim.taken == []


def test_simulator_whose_engine_ends_at_its_start_quotes_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    env = made()

    def reset() -> None:
        raise EOFError("1\n2\n\n3\n java: not found\n\nMinecraft process finished unexpectedly.")

    monkeypatch.setattr(env._sim, "reset", reset)
    with pytest.raises(EnvError, match=r"It said: 2; 3; java: not found\. See `minefleet doctor`"):
        env.reset()


def test_the_simulators_own_actions_pass_as_they_are() -> None:
    env = made(kind="env")
    action = {"attack": 1, "camera": np.zeros(2, np.float32)}
    env.reset()
    env.step(action)
    assert set(schema_of(env)["action"]) == {"attack", "camera"}
    assert set(action) == {"attack", "camera"}
    assert env._sim.taken[0]["attack"] == 1


def test_simulator_with_a_seed_repeats_the_draws_of_its_callbacks() -> None:
    env = made()
    drawn = []
    for seed in (3, 4, 3):
        env.reset(seed=seed)
        drawn.append(env._sim.drawn)
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]


def test_simulators_info_has_metrics_and_task_of_callbacks_and_nothing_of_the_engine() -> None:
    env = made(end={1: {"info": {"metrics": {"cows": 2}, "task": "hunt", "kill_entity": {}}}})
    assert played(env, 1)[4] == {"metrics": {"cows": 2}, "task": "hunt"}
    assert env.reset()[1] == {}


@pytest.mark.parametrize(
    ("options", "steps", "ends"),
    [
        ({"limit": 3}, 2, (False, False)),
        ({"limit": 3}, 3, (False, True)),
        ({"limit": 3, "end": {2: {"terminated": True}}}, 2, (True, False)),
        ({"end": {2: {"terminated": True, "truncated": True}}}, 2, (False, True)),
        ({"end": {2: {"terminated": True, "truncated": True, "health": np.array(0.0)}}}, 2, (True, False)),
        ({"limit": 2, "end": {2: {"terminated": True, "health": np.array(0.0)}}}, 2, (True, False)),
    ],
)
def test_simulator_truncates_at_its_time_limit_and_terminates_at_deaths_and_by_callbacks(
    options: Any, steps: int, ends: tuple[bool, bool]
) -> None:
    assert played(made(**options), steps)[2:4] == ends


def test_simulators_time_limit_counts_from_the_last_reset() -> None:
    env = made(limit=2)
    played(env, 1)
    assert played(env, 2)[2:4] == (False, True)


def test_simulator_with_a_failed_engine_raises_instead_of_showing_made_up_images() -> None:
    env = made(end={1: {"terminated": True, "truncated": True, "info": {"error": "Connection timed out!"}}})
    with pytest.raises(EnvError, match="engine has failed: Connection timed out!"):
        played(env, 1)


def test_simulator_with_images_that_are_not_square_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"only squares are safe, got \(4, 8\)"):
        made(height=8)


def test_the_last_image_can_be_rendered_and_closing_closes_the_simulator() -> None:
    env = made()
    played(env, 2)
    assert (env.render() == 2).all()
    env.close()
    assert env._sim.taken[-1] == "closed"


def test_simulator_whose_generator_asks_at_the_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(RefusedError, match="asks a question at the terminal; it must not: nobody is there to answer"):
        make({"id": "", "generator": f"{__name__}:asks", "kwargs": {}, "wrappers": DEFAULTS, "batched": False})


def test_environment_without_minestudio_does_not_look_for_its_engine() -> None:
    assert minestudio_jar_path.missing() == ""
