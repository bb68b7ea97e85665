"""Frames that an environment renders, in their slot's row."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minefleet.config import EnvConfig
from minefleet_env import shared_slot_arrays
from minefleet_env.env_command_execution import EnvHost
from minefleet_env.env_probe import describe
from minefleet_env.errors import RefusedError
from minefleet_env.process_messages import Command, Kind
from minefleet_env.space_conversion import schema_of


class Painter(gymnasium.Env[Any, Any]):
    """Paints its steps. At step 3 the brush breaks."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(100)
        self.action_space = spaces.Discrete(2)
        self._steps = 0
        self.paintings = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._steps, 0.0, False, False, {}

    def render(self) -> Any:
        if self._steps == 3:
            raise OSError("the brush is broken")
        return np.full((4, 6, 3), 10 + self._steps, np.uint8)


@pytest.fixture
def hosted() -> Iterator[tuple[EnvHost, shared_slot_arrays.Arrays]]:
    schema = schema_of(Painter())
    arrays = shared_slot_arrays.private(schema, 2, (4, 6, 3))
    config = asdict(EnvConfig(generator=f"{Painter.__module__}:Painter"))
    host = EnvHost(config, schema, arrays, range(2))
    assert not host.make().failures
    yield host, arrays
    host.close()


def test_a_slot_shows_a_frame_of_every_reset_and_step_while_it_is_filmed(
    hosted: tuple[EnvHost, shared_slot_arrays.Arrays],
) -> None:
    host, arrays = hosted
    arrays.film[1] = True
    shown = []
    for command in (Command.RESET, Command.STEP, Command.STEP):
        host.run(bytes([command] * 2))
        shown.append(arrays.frame[1, 0, 0, 0])
    arrays.film[1] = False
    host.run(bytes([Command.RESET] * 2))
    assert [*shown, arrays.frame[1, 3, 5, 2]] == [10, 11, 12, 12]
    assert not arrays.frame[0].any()


def test_a_frame_that_cannot_be_had_costs_the_picture_and_not_the_episode(
    hosted: tuple[EnvHost, shared_slot_arrays.Arrays],
) -> None:
    host, arrays = hosted
    arrays.film[0] = True
    replies = [host.run(bytes([command, Command.NONE])) for command in (Command.RESET, *[Command.STEP] * 3)]
    assert [reply.kinds[0] for reply in replies] == [Kind.RESET, Kind.STEP, Kind.STEP, Kind.STEP]
    assert arrays.obs[""][0] == 3
    assert not arrays.frame[0].any()
    host.run(bytes([Command.STEP, Command.NONE]))
    assert (arrays.frame[0] == 14).all()


def test_environment_with_pixels_is_filmed_by_them_and_renders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    schema = schema_of(Painter())
    arrays = shared_slot_arrays.private(schema, 1)
    host = EnvHost(asdict(EnvConfig(generator=f"{Painter.__module__}:Painter")), schema, arrays, range(1))
    assert not host.make().failures
    arrays.film[0] = True
    host.run(bytes([Command.RESET]))
    host.close()
    assert caplog.text == ""


def found(config: EnvConfig, *, films: bool) -> Any:
    return describe(asdict(config), 0, films=films, hosted=False)["frame_shape"]


def test_env_probe_finds_a_frame_shape_only_where_there_are_no_pixels() -> None:
    painter = EnvConfig(generator=f"{Painter.__module__}:Painter")
    assert found(painter, films=True) == [4, 6, 3]
    assert found(painter, films=False) is None
    assert found(EnvConfig(id="minefleet/Crafter-v0"), films=True) is None


def test_an_environment_that_must_render_and_cannot_is_refused_with_what_to_do() -> None:
    with pytest.raises(RefusedError, match=r"cannot render frames for videos.*record_video_interval=0"):
        found(EnvConfig(id="minefleet/Recall-v0"), films=True)
