"""Environments of one process: made, reset and stepped in turn, their results checked and written to their rows."""

import logging
import time
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet import envs
from minefleet.config import EnvConfig
from minefleet.envs.spaces import from_env_obs, schema_of, to_env_action
from minefleet.errors import ContractError, FleetError
from minefleet.schema import Leaf, Schema
from minefleet.tree import flatten, tree_map
from minefleet_worker.frames import Command, Ending, Failure, Kind, Reply
from minefleet_worker.layout import Arrays

logger = logging.getLogger(__name__)

MAX_REWARD = float(np.finfo(np.float32).max)
MAX_TEXT = 8_000
"""Characters of a traceback that are passed on, the last ones."""


class EnvError(FleetError):
    """An environment returned what it must not, or reports an error."""

    def __init__(self, message: str, kind: str = "contract") -> None:
        super().__init__(message)
        self.kind = kind


class EnvHost:
    """Runs commands for the environments of some slots."""

    def __init__(self, config: EnvConfig, schema: Schema, arrays: Arrays, slots: range) -> None:
        self._envs = [HostedEnv(config, schema, arrays, slot) for slot in slots]
        self._began_s = arrays.began_s[slots.start : slots.stop]

    def make(self) -> Reply:
        """Makes all environments; the reply has the failures."""
        return self.run(bytes([Command.MAKE]) * len(self._envs))

    def run(self, commands: bytes) -> Reply:
        """Runs one command per environment, in turn. Whatever an environment raises is in the reply."""
        kinds = bytearray(len(commands))
        endings: dict[int, Ending] = {}
        failures: dict[int, Failure] = {}
        for index, command in enumerate(commands):
            if command == Command.NONE:
                continue
            self._began_s[index] = time.monotonic()
            try:
                kinds[index], ending = self._envs[index].run(command)
            except Exception as error:  # noqa: BLE001  # Environments may raise anything; the pool decides what follows.
                kinds[index], ending = Kind.FAILED, None
                kind = error.kind if isinstance(error, EnvError) else "exception"
                failures[index] = Failure(kind, traceback.format_exc()[-MAX_TEXT:])
            if ending is not None:
                endings[index] = ending
        return Reply(kinds=bytes(kinds), endings=endings, failures=failures)

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.close()


class HostedEnv:
    """One environment and its rows."""

    def __init__(self, config: EnvConfig, schema: Schema, arrays: Arrays, slot: int) -> None:
        self._config = config
        self._schema = schema
        self._arrays = arrays
        self._slot = slot
        self._env: envs.Env | None = None
        self._task = ""
        self._leaves: dict[str, Leaf] = flatten(schema.obs)
        self._obs_rows: dict[str, NDArray[Any]] = flatten(_rows(arrays.obs, slot))
        self._action_rows = _rows(arrays.action, slot)

    def run(self, command: int) -> tuple[Kind, Ending | None]:
        """Runs one command. Returns what became of it, and what is known of the episode when it begins or ends."""
        if command == Command.STEP:
            return Kind.STEP, self._step()
        if command in (Command.MAKE, Command.REMAKE):
            self._make()
        if command in (Command.RESET, Command.REMAKE):
            self._reset()
            return Kind.RESET, Ending(task=self._task) if self._task else None
        return Kind.NONE, None

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
        self._env = envs.make(self._config)
        schema = schema_of(self._env)
        if schema != self._schema:
            raise ContractError(f"the environment's spaces are {schema}, the run's are {self._schema}")
        self._obs_space = self._env.observation_space
        self._action_space = self._env.action_space

    def _reset(self) -> None:
        seed = int(self._arrays.seed[self._slot])
        obs, info = self._made.reset(seed=seed if seed >= 0 else None)
        _refuse_error(info)
        self._task = str(info.get("task", ""))
        self._write(obs, 0.0, terminated=False, truncated=False)

    def _step(self) -> Ending | None:
        action = to_env_action(self._action_space, self._action_rows)
        obs, reward, terminated, truncated, info = self._made.step(action)
        _refuse_error(info)
        self._write(obs, _checked_reward(reward), terminated=bool(terminated), truncated=bool(truncated))
        return self._ending(info) if terminated or truncated else None

    @property
    def _made(self) -> envs.Env:
        if self._env is None:
            raise EnvError("the environment was not made")
        return self._env

    def _write(self, obs: Any, reward: float, *, terminated: bool, truncated: bool) -> None:
        for path, value in flatten(from_env_obs(self._obs_space, obs)).items():
            row = self._obs_rows[path]
            _check_obs(value, row, self._leaves[path], path)
            row[...] = value
        self._arrays.reward[self._slot] = reward
        self._arrays.terminated[self._slot] = terminated
        self._arrays.truncated[self._slot] = truncated

    def _ending(self, info: Mapping[str, Any]) -> Ending:
        metrics = {str(name): float(value) for name, value in info.get("metrics", {}).items()}
        return Ending(metrics=metrics, task=str(info.get("task", self._task)))


def _rows(tree: Any, slot: int) -> Any:
    """Views of a slot's rows; the dots keep those of shape () arrays."""
    return tree_map(lambda array: array[slot, ...], tree)


def _refuse_error(info: Mapping[str, Any]) -> None:
    if info.get("error"):
        raise EnvError(f"the environment reports an error: {info['error']}", "error")


def _checked_reward(reward: Any) -> float:
    value = float(reward)
    if not abs(value) <= MAX_REWARD:
        raise EnvError(f"the reward must be a finite float32, got {value}")
    return value


def _check_obs(value: NDArray[Any], row: NDArray[Any], leaf: Leaf, path: str) -> None:
    name = f"observation {path!r}" if path else "the observation"
    if value.shape != row.shape:
        raise EnvError(f"{name} must have shape {row.shape}, got {value.shape}")
    if value.dtype != row.dtype and not np.can_cast(value.dtype, row.dtype, "same_kind"):
        raise EnvError(f"{name} must be {row.dtype}, got {value.dtype}")
    if row.dtype.kind == "f" and not np.isfinite(value).all():
        raise EnvError(f"{name} must be finite, got {value}")
    if leaf.kind != "box" and not ((value >= 0) & (value < np.asarray(leaf.categories).reshape(row.shape))).all():
        raise EnvError(f"{name} must count categories below {leaf.categories}, got {value}")
