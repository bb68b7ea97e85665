"""Finds out what an environment is, by making it once: `describe` in a process of its own, before a run starts."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env import shared_slot_arrays
from minefleet_env.batched.batched_env_host import BatchHost
from minefleet_env.batched.vector_env_rows import BatchRow, EnvBatch
from minefleet_env.env_command_execution import HostedEnv, rendered
from minefleet_env.errors import EnvError, RefusedError, in_one_line
from minefleet_env.make_env import make, make_batch
from minefleet_env.process_messages import Command
from minefleet_env.space_conversion import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping


CLOSE_S = 10
"""Longest that an environment may take to close, seconds."""


def reply(question: Mapping[str, Any]) -> dict[str, Any]:
    """The findings of `describe`; or an `error` that says why there is no such environment; or the `failure` of one."""
    try:
        return describe(**{key: question[key] for key in ("config", "seed", "num_envs", "films", "hosted")})
    except RefusedError as error:
        return {"error": str(error)}
    except EnvError as error:
        return {"failure": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001  # It is somebody else's code.
        return {"failure": trace(error)}


def trace(error: BaseException) -> str:
    """The traceback, and those of its causes, without frames of this package."""
    formatted = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = formatted
    while link is not None:
        link.stack[:] = [frame for frame in link.stack if Path(frame.filename).parent != Path(__file__).parent]
        link = link.__cause__ or link.__context__
    return "".join(formatted.format()).rstrip()


def describe(config: Mapping[str, Any], seed: int, *, films: bool, hosted: bool, num_envs: int = 1) -> dict[str, Any]:
    """Makes an environment, resets and steps it as a run does, and returns its `schema` and `frame_shape`.

    Of environments in a batch it makes `num_envs`.

    `frame_shape` is [height, width, 3] of what it renders, or None: where no films are wanted, and where an observation
    has pixels that can be shown instead. Where the run is `hosted`, and only an environment's spaces are here, no more
    is looked at.

    Raises:
        RefusedError: If there is no such environment, it has spaces without a counterpart, or cannot render.
        EnvError: If it breaks the interface or its own spaces at once.
    """
    env = make_batch(config, num_envs, seed) if config["batched"] else make(config)
    if hosted and getattr(env.unwrapped, "is_elsewhere", False):
        return {"schema": schema_of(env), "frame_shape": None}
    schema = (_batch_schema if config["batched"] else _schema)(env, config, seed)
    renders = films and not any(_is_pixels(leaf) for leaf in schema["obs"].values())
    return {"schema": schema, "frame_shape": _frame_shape(config, seed) if renders else None}


def _schema(env: Any, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    try:
        schema = schema_of(env)
        arrays = shared_slot_arrays.private(schema, 1)
        arrays.seed[0] = seed
        arrays.task[0] = next(iter(config["tasks"]), "").encode()
        hosted = HostedEnv(config, schema, arrays, 0)
        hosted.adopt(env)
        hosted.run(Command.RESET)
        hosted.allow_action()
        hosted.run(Command.STEP)
    finally:
        close(env)
    return schema


def _batch_schema(env: Any, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    schema = schema_of(BatchRow(EnvBatch(env), 0))
    arrays = shared_slot_arrays.private(schema, env.num_envs)
    arrays.seed[:] = seed + np.arange(env.num_envs)
    host = BatchHost(config, schema, arrays, range(env.num_envs))
    host.adopt(env)
    try:
        for command in (Command.RESET, Command.STEP):
            for failure in host.run(bytes([command]) * env.num_envs).failures.values():
                raise EnvError(failure.text)
            host.allow_actions()
    finally:
        close(host)
    return schema


def close(env: Any) -> None:
    """Closes an environment, or ends this process by SIGALRM: its launcher then knows why."""
    signal.alarm(CLOSE_S)
    env.close()
    signal.alarm(0)


def _is_pixels(leaf: Mapping[str, Any]) -> bool:
    return leaf["kind"] == "box" and leaf["dtype"] == "uint8" and len(leaf["shape"]) == 3


def _frame_shape(config: Mapping[str, Any], seed: int) -> list[int]:
    try:
        env = make(config, "rgb_array")
        try:
            env.reset(seed=seed)
            return list(rendered(env).shape)
        finally:
            close(env)
    except Exception as error:
        raise RefusedError(
            "the environment cannot render frames for videos, and its observation has no pixels: "
            f"{in_one_line(error)}; make it with render_mode='rgb_array', or film nothing: no --video, and "
            "train_config.record_video_interval=0"
        ) from error
