"""Finds out what an environment is, by making it once: `describe` in a process of its own, before a run starts."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from minefleet_env import layout
from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.host import refuse_error, rendered
from minefleet_env.make_env import make
from minefleet_env.space_conversion import schema_of, writer

if TYPE_CHECKING:
    from collections.abc import Mapping


def reply(question: Mapping[str, Any]) -> dict[str, Any]:
    """The findings of `describe`; or an `error` that says why there is no such environment; or the `failure` of one."""
    try:
        return describe(question["config"], question["seed"], films=question["films"])
    except RefusedError as error:
        return {"error": str(error)}
    except EnvError as error:
        return {"failure": str(error)}
    except Exception as error:  # noqa: BLE001  # It is somebody else's code.
        return {"failure": trace(error)}


def trace(error: BaseException) -> str:
    """The traceback, and those of its causes, without frames of this module."""
    formatted = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = formatted
    while link is not None:
        link.stack[:] = [frame for frame in link.stack if frame.filename != __file__]
        link = link.__cause__ or link.__context__
    return "".join(formatted.format()).rstrip()


def describe(config: Mapping[str, Any], seed: int, *, films: bool) -> dict[str, Any]:
    """Makes an environment, resets it, and returns its `schema` and `frame_shape`.

    `frame_shape` is [height, width, 3] of what it renders, or None: where no films are wanted, and where an observation
    has pixels that can be shown instead.

    Raises:
        RefusedError: If there is no such environment, it has spaces without a counterpart, or cannot render.
        EnvError: If it breaks its own spaces at once.
    """
    schema = _schema(config, seed)
    renders = films and not any(_is_pixels(leaf) for leaf in schema["obs"].values())
    return {"schema": schema, "frame_shape": _frame_shape(config, seed) if renders else None}


def _schema(config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    env = make(config)
    try:
        schema = schema_of(env)
        obs, info = env.reset(seed=seed)
        refuse_error(info)
        rows = {path: array[0, ...] for path, array in layout.private(schema, 1).obs.items()}
        writer(env.observation_space, schema["obs"], rows)(obs)
    finally:
        env.close()
    return schema


def _is_pixels(leaf: Mapping[str, Any]) -> bool:
    return leaf["kind"] == "box" and leaf["dtype"] == "uint8" and len(leaf["shape"]) == 3


def _frame_shape(config: Mapping[str, Any], seed: int) -> list[int]:
    try:
        env = make(config, "rgb_array")
        try:
            env.reset(seed=seed)
            return list(rendered(env).shape)
        finally:
            env.close()
    except Exception as error:
        raise RefusedError(
            "the environment cannot render frames for videos, and its observation has no pixels: "
            f"{type(error).__name__}: {error}; make it support render_mode='rgb_array', or set "
            "train_config.record_video_interval=0"
        ) from error
