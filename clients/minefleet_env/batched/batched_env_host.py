"""Environments of one process that step together: the rows of one batch, one per slot.

Each command is for all rows, since none steps alone. Resets are what the batch makes of them:

    next step   a row's reset is its part of the step that the others take
    same step   the first observation has come with the end of the episode before; a reset hands it over
    disabled    a mask says which rows are reset

Other than in the first, nobody steps at a reset: steps that are commanded together with it are answered by `Kind.NONE`,
and commanded again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.batched.vector_env_rows import DISABLED, NEXT_STEP, BatchRow, EnvBatch
from minefleet_env.env_command_execution import EnvHost, failure_of
from minefleet_env.errors import EnvError
from minefleet_env.make_env import make_batch, takes_seed
from minefleet_env.process_messages import Command, Failure, Kind, Reply
from minefleet_env.space_conversion import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from minefleet_env.shared_slot_arrays import Arrays

SEEDED_BY_ROW = ("SyncVectorEnv", "AsyncVectorEnv")
"""Vector environments whose `reset` takes a seed for each row; others take one for all."""


class BatchHost(EnvHost):
    """Runs commands for the rows of a batch. A failure is of all of them, unless the batch can reset a row alone.

    The batch is made anew where that is wanted of all rows at once, and else resets the row.
    """

    def __init__(
        self, config: Mapping[str, Any], schema: Mapping[str, Any], arrays: Arrays, slots: range, discount: float = 1.0
    ) -> None:
        super().__init__(config, schema, arrays, slots, discount)
        self._config, self._schema = config, schema
        self._seeds = arrays.seed[slots.start : slots.stop]
        self._batch: EnvBatch | None = None
        self._is_new = True

    def run(self, commands: bytes) -> Reply:
        """Runs a command for each row, see the module's docstring."""
        self._began_s[:] = time.monotonic()
        try:
            if min(commands) >= Command.MAKE:
                self.close()
                self.adopt(make_batch(self._config, len(commands), int(self._seeds[0])))
            if commands[0] == Command.MAKE:
                return Reply(bytes(len(commands)))
            commands = self._play(np.frombuffer(commands, np.uint8) >= Command.RESET)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # They may raise anything; the pool decides.
            return self._failed(failure_of(error))
        reply = super().run(commands)
        if reply.failures and self._batch is not None and self._batch.mode != DISABLED:
            return self._failed(next(iter(reply.failures.values())))
        return reply

    def adopt(self, env: Any) -> None:
        """Plays this vector environment, whose rows have the run's spaces, from now on."""
        self._batch, self._is_new = EnvBatch(env), True
        self._was_seeded = takes_seed(self._config)
        rows = [BatchRow(self._batch, row) for row in range(len(self._envs))]
        schema = schema_of(rows[0])
        if schema != self._schema:
            raise EnvError(f"the environment's spaces are {schema}, the run's are {self._schema}")
        for hosted, row in zip(self._envs, rows):
            hosted.adopt(row)

    def _play(self, resets: NDArray[np.bool_]) -> bytes:
        """Resets or steps the batch; returns the commands that are to be answered from its results."""
        if self._batch is None:
            raise EnvError("the environment was not made", "exception")
        if self._is_new:
            self._begin()
        elif not resets.any() or self._batch.mode == NEXT_STEP:
            self._step(self._batch, resets)
            return bytes(np.where(resets, Command.RESET, Command.STEP).astype(np.uint8))
        elif self._batch.mode == DISABLED:
            seed = {} if self._was_seeded else {"seed": self._seed(resets)}
            self._batch.reset(**seed, options={"reset_mask": resets})
        return bytes(np.where(resets, Command.RESET, Command.NONE).astype(np.uint8))

    def _begin(self) -> None:
        """Resets all rows for the first time. Only then does every kind of batch take seeds."""
        assert self._batch is not None
        if self._was_seeded:
            self._batch.reset()
        else:
            self._batch.reset(seed=self._seed(np.ones(len(self._seeds), np.bool_)))
        self._is_new = False

    def _step(self, batch: EnvBatch, resets: NDArray[np.bool_]) -> None:
        if (resets & ~batch.is_over).any():
            raise EnvError("a row cannot be reset within an episode: the batch resets rows whose episode is over")
        batch.step([hosted.read() for hosted in self._envs])
        if (resets & batch.is_over).any():
            raise EnvError("the step that resets a row must not end its episode: the batch resets in the next step")

    def _seed(self, resets: NDArray[np.bool_]) -> int | list[int | None] | None:
        """The seeds of rows that are reset, as the batch takes them."""
        seeds = [int(seed) if seed >= 0 and is_reset else None for seed, is_reset in zip(self._seeds, resets)]
        known = [seed for seed in seeds if seed is not None]
        if not known:
            return None
        is_by_row = self._batch is not None and type(self._batch.env.unwrapped).__name__ in SEEDED_BY_ROW
        return seeds if is_by_row else known[0]

    def _failed(self, failure: Failure) -> Reply:
        count = len(self._envs)
        return Reply(bytes([Kind.FAILED]) * count, failures=dict.fromkeys(range(count), failure))


def make_host(
    config: Mapping[str, Any], schema: Mapping[str, Any], arrays: Arrays, slots: range, discount: float
) -> EnvHost:
    """The host of a process's environments; `discount` is γ between the environment's own steps within a step."""
    return (BatchHost if config["batched"] else EnvHost)(config, schema, arrays, slots, discount)
