"""A pool of environments in this process: `wait` runs the commands, in turn.

For `--serial`, for debuggers, and for environments that take microseconds, where a process of their own costs more.
"""

import sys
import threading
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet_actor.pool.base_pool import Pool
from minefleet_actor.pool.failure_log_limiter import FailureLog
from minefleet_actor.pool.pool_results import EnvStartError, Ready
from minefleet_env import interpreter_command, shared_slot_arrays
from minefleet_env.batched.batched_env_host import make_host
from minefleet_env.env_command_execution import EnvHost
from minefleet_env.process_messages import Command


class InlinePool(Pool):
    """Environments in this process; see `Pool` for the contract. Nothing is killed here, so a hang is a hang."""

    def __init__(self, env_config: EnvConfig, schema: Schema, worker_config: WorkerConfig, **options: Any) -> None:
        if env_config.python:
            raise ConfigError(f"env.python={env_config.python} is another interpreter: it cannot play in this process")
        super().__init__(env_config, schema, worker_config, **options)
        self._slots = range(worker_config.num_envs)
        self._host: EnvHost | None = None
        self._woken = threading.Event()
        self._log = FailureLog()

    def start(self) -> None:
        """Makes the environments. Raises `EnvStartError` if one fails."""
        self._slot_states.arrays = shared_slot_arrays.private(self._schema, self.num_slots, self._frame_shape)
        self._slot_states.renew(self._slots)
        sys.path += [place for place in interpreter_command.import_path("") if place not in sys.path]
        arrays, discount = self._slot_states.arrays, self._discount
        self._host = make_host(asdict(self._env_config), self._schema, arrays, self._slots, discount)
        failures = self._host.make().failures
        if failures:
            self.close()
            raise EnvStartError("\n".join(f"slot {slot}: {failure.text}" for slot, failure in failures.items()))

    def wait(self, timeout_s: float) -> Ready:
        """Does what was asked for. Where that is nothing, waits until `wake` is called or the time is over."""
        now_s = time.monotonic()
        until_s = now_s + timeout_s
        while not self._run(now_s) and now_s < until_s:
            if self._woken.wait(max(0.0, min(until_s, self._next_s(now_s)) - time.monotonic())):
                break
            now_s = time.monotonic()
        self._woken.clear()
        return self._slot_states.take()

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""
        self._woken.set()

    def close(self) -> None:
        """Closes the environments."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def _run(self, now_s: float) -> bool:
        """Runs the commands, but not the resets of slots that pause; says whether there were any."""
        row = self._slot_states.command
        may_go = (row < Command.RESET) | (self._slot_states.breaker.until_s <= now_s)
        commands = (row * may_go).tobytes()
        if self._host is None or not (all if self._env_config.batched else any)(commands):
            return False
        row[may_go] = Command.NONE
        reply = self._host.run(commands)
        self._slot_states.record(reply, self._slots)
        self._log.record_all(reply.failures, self._slots, time.monotonic())
        return True

    def _next_s(self, now_s: float) -> float:
        """When the first pause is over that a reset waits for. Others of a batch may wait for something else."""
        until_s = self._slot_states.breaker.until_s[self._slot_states.command >= Command.RESET]
        return float(np.min(until_s[until_s > now_s], initial=np.inf))
