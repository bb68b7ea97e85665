"""Environments of one process: made, reset and stepped in turn, their results checked and written to their rows."""

from __future__ import annotations

import logging
import resource
import time
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.discounted_step_rewards import discounted
from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.make_env import make
from minefleet_env.process_messages import Command, EpisodeEnd, Failure, Kind, Reply
from minefleet_env.space_conversion import reader, schema_of, writer
from minefleet_env.wrappers.action_mask_rows import MASK, allow_nothing, masks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minefleet_env.shared_slot_arrays import Arrays

logger = logging.getLogger(__name__)

MAX_REWARD = float(np.finfo(np.float32).max)
STEP_VALUES = 5
MAX_TEXT = 8_000
"""Characters of a traceback that are passed on, the last ones."""


class EnvHost:
    """Runs commands for the environments of some slots."""

    def __init__(
        self, config: Mapping[str, Any], schema: Mapping[str, Any], arrays: Arrays, slots: range, discount: float = 1.0
    ) -> None:
        self._envs = [HostedEnv(config, schema, arrays, slot, discount) for slot in slots]
        self._began_s = arrays.began_s[slots.start : slots.stop]

    def make(self) -> Reply:
        """Makes all environments; the reply has the failures."""
        return self.run(bytes([Command.MAKE]) * len(self._envs))

    def run(self, commands: bytes) -> Reply:
        """Runs one command per environment, in turn. Whatever an environment raises is in the reply."""
        kinds = bytearray(len(commands))
        endings: dict[int, EpisodeEnd] = {}
        failures: dict[int, Failure] = {}
        for index, command in enumerate(commands):
            if command == Command.NONE:
                continue
            self._began_s[index] = time.monotonic()
            try:
                kinds[index], ending = self._envs[index].run(command)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # They may raise anything; the pool decides.
                kinds[index], ending = Kind.FAILED, None
                failures[index] = failure_of(error)
            if ending is not None:
                endings[index] = ending
        return Reply(kinds=bytes(kinds), endings=endings, failures=failures)

    def allow_actions(self) -> None:
        """Makes the actions in the rows, of zeros, such that the masks allow them."""
        for env in self._envs:
            env.allow_action()

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.close()


class HostedEnv:
    """One environment and its rows."""

    def __init__(
        self, config: Mapping[str, Any], schema: Mapping[str, Any], arrays: Arrays, slot: int, discount: float = 1.0
    ) -> None:
        self._config = config
        self._schema = schema
        self._arrays = arrays
        self._slot = slot
        self._discount = discount
        self._obs_rows = _rows(arrays.obs, slot)
        self._action_rows = _rows(arrays.action, slot)
        categories = {path: leaf["categories"] for path, leaf in schema["action"].items()}
        self._masks = masks_of(self._obs_rows, categories)
        self._frame = arrays.frame[slot]
        self._env: Any = None
        self._task = ""
        self._renders = True

    def run(self, command: int) -> tuple[Kind, EpisodeEnd | None]:
        """Runs one command. Returns what became of it, and what is known of the episode when it begins or ends."""
        if command == Command.STEP:
            return Kind.STEP, self._step()
        if command in (Command.MAKE, Command.REMAKE):
            self._make()
        if command in (Command.RESET, Command.REMAKE):
            self._reset()
            return Kind.RESET, EpisodeEnd(task=self._task) if self._task else None
        return Kind.NONE, None

    def adopt(self, env: Any) -> None:
        """Plays this environment, which has the run's spaces, from now on."""
        self._env = env
        self.read = reader(env.action_space, self._action_rows)
        """Returns the action in the rows, as the environment takes it."""
        self._write = writer(env.observation_space, self._schema["obs"], self._obs_rows)
        self._renders = True

    def allow_action(self) -> None:
        """Makes the action in the rows, of zeros, one that the mask allows: the first category that it does."""
        for path, row in self._action_rows.items():
            categories = {path: self._schema["action"][path]["categories"]}
            for mask, starts in masks_of(self._obs_rows, categories):
                row.reshape(-1)[:] = [int(part.argmax()) for part in np.split(mask != 0, starts[1:])]

    def close(self) -> None:
        """Closes the environment, if there is one. A broken one may fail to close."""
        env, self._env = self._env, None
        if env is None:
            return
        try:
            env.close()
        except Exception:
            logger.warning("the environment of slot %s failed to close", self._slot, exc_info=True)

    def _make(self) -> None:
        self.close()
        env = make(self._config, "rgb_array" if self._frame.size else None)
        schema = schema_of(env)
        if schema != self._schema:
            raise EnvError(f"the environment's spaces are {schema}, the run's are {self._schema}")
        self.adopt(env)

    def _reset(self) -> None:
        self._refuse_none()
        seed = int(self._arrays.seed[self._slot])
        task = bytes(self._arrays.task[self._slot]).decode()
        options: dict[str, Any] = {"options": {"task": task}} if task else {}
        obs, info = self._env.reset(seed=seed if seed >= 0 else None, **options)
        refuse_error(info)
        self._task = str(info.get("task", task))
        self._write(obs)
        self._write_result(0.0, False, False)

    def _step(self) -> EpisodeEnd | None:
        self._refuse_none()
        result = self._env.step(self.read())
        if not isinstance(result, tuple) or len(result) != STEP_VALUES:
            shown = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise EnvError(f"step must return (obs, reward, terminated, truncated, info), got {shown}")
        obs, reward, terminated, truncated, info = result
        refuse_error(info)
        self._write(obs)
        if self._config["time_limit"] == "terminated":
            terminated, truncated = terminated or truncated, False
        reward = _checked_reward(reward)
        total, self._arrays.duration[self._slot] = discounted(reward, info, self._discount)
        self._arrays.discounted_reward[self._slot] = _checked_reward(total)
        self._write_result(reward, terminated, truncated)
        return self._ending(info) if terminated or truncated else None

    def _refuse_none(self) -> None:
        if self._env is None:
            raise EnvError("the environment was not made", "exception")

    def _write_result(self, reward: float, terminated: Any, truncated: Any) -> None:
        if not (terminated or truncated) and allow_nothing(self._masks):
            raise EnvError(f"the observation's {MASK!r} allows no action")
        arrays, slot = self._arrays, self._slot
        arrays.reward[slot] = reward
        arrays.terminated[slot] = terminated
        arrays.truncated[slot] = truncated
        if arrays.film[slot] and self._frame.size:
            self._draw()

    def _draw(self) -> None:
        """Writes the current frame. One that cannot be had costs the picture and not the episode."""
        try:
            self._frame[...] = rendered(self._env)
        except Exception:
            self._frame[...] = 0
            if self._renders:
                logger.warning("the environment of slot %s cannot render a frame", self._slot, exc_info=True)
            self._renders = False

    def _ending(self, info: Mapping[str, Any]) -> EpisodeEnd:
        metrics = {str(name): float(value) for name, value in info.get("metrics", {}).items()}
        return EpisodeEnd(metrics=metrics, task=str(info.get("task", self._task)))


def rendered(env: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The environment's current frame, [height, width, 3] uint8.

    Raises:
        EnvError: If it shows something else.
    """
    frame = env.render()
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        return frame
    shown = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
    raise EnvError(f"render() must return a uint8 array [height, width, 3], got {shown}")


def failure_of(error: BaseException) -> Failure:
    """Reports what an environment has raised, while it is handled."""
    kind = error.kind if isinstance(error, EnvError) else "exception"
    is_ours = isinstance(error, (EnvError, RefusedError))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Failure(kind, (str(error) if is_ours else traceback.format_exc())[-MAX_TEXT:], (peak_bytes,))


def refuse_error(info: Mapping[str, Any]) -> None:
    """Raises `EnvError` where the environment says that it is broken."""
    if info.get("error"):
        raise EnvError(f"the environment reports an error: {info['error']}", "error")


def _rows(arrays: Mapping[str, Any], slot: int) -> dict[str, Any]:
    """Views of a slot's rows; the dots keep those of shape () arrays."""
    return {path: array[slot, ...] for path, array in arrays.items()}


def _checked_reward(reward: Any) -> float:
    array = np.asarray(reward)
    if array.shape or array.dtype.kind not in "biuf":
        raise EnvError(f"the reward must be one number, got {reward!r}")
    value = float(reward)
    if not abs(value) <= MAX_REWARD:
        raise EnvError(f"the reward must be a finite float32, got {value}")
    return value
