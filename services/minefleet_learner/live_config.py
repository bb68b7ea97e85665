"""The configuration of each iteration: the run's, and what its journal has changed since.

    look ─▶ requests without an answer ─▶ one durable line each ─▶ fold ─▶ the configuration of an iteration

A learner that goes on from a checkpoint reads the same lines, and so repeats them at the same iterations.
"""

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from minefleet.config import FleetConfig
from minefleet.config.live_settings import value_of, with_settings
from minefleet.core.errors import ConfigError, RolledBackError
from minefleet.monitoring.journal import Line, append, read_whole_journal, record_start
from minefleet.monitoring.learner_requests_in_journal import REFUSED, ROLLBACK, SET, newest_learner, unanswered
from minefleet.monitoring.live_settings_by_iteration import set_lines, settings_of_iteration
from minefleet.monitoring.rollback_requests import answer_rollback, open_rollback
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.runs.run_yaml import JOURNAL_FILE, Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationConfig:
    """The configuration of one iteration."""

    config: FleetConfig
    settings: Mapping[str, Any]
    """The values of live keys that were set, by key."""

    @property
    def text(self) -> str:
        """The settings for other roles, as canonical JSON; "" where there are none."""
        return json.dumps(self.settings, sort_keys=True, separators=(",", ":")) if self.settings else ""


class LiveConfig:
    """A run's configuration by iteration, counted from 1; of one learner, whose loop looks at the journal."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.name = uuid.uuid4().hex
        self._is_recorded = False
        self._size = 0
        self._held: list[Line] = []
        self._latest = self.current = IterationConfig(config=run.config, settings={})
        """Of the iteration in training."""

    def start(self, state: CheckpointState) -> None:
        """Records the start, and answers what was asked for since the last learner; it holds from the first iteration.

        Raises:
            ConfigError: As `at` does.
        """
        self._is_recorded = record_start(self._run, state, self.name)
        self.look(state, state.iteration + 1)

    def enter(self, state: CheckpointState, iteration: int) -> Mapping[str, Any] | None:
        """Looks at the journal, and goes over to the configuration of an iteration.

        The lease of this iteration may be asked for, and its version be published, but neither of the next one: that is
        the first for which all roles can be told in time.

        Returns:
            The settings, where they have changed since the last iteration that was trained here.
        """
        self.look(state, iteration + 1)
        before, self.current = self.current, self.at(iteration)
        return None if self.current.settings == before.settings else self.current.settings

    def look(self, state: CheckpointState, iteration: int) -> None:
        """Reads the journal where it has grown, and answers requests; what is granted holds from `iteration` on.

        Nothing changes where the answer cannot be written: then the next look tries again. Nothing is written once
        another learner has started.

        Raises:
            RolledBackError: If the run goes back to an older checkpoint.
        """
        journal = self._run.directory / JOURNAL_FILE
        try:
            while (size := journal.stat().st_size) != self._size:
                lines = read_whole_journal(self._run.directory)
                requests, self._held = unanswered(lines), set_lines(lines)
                if undone := open_rollback(lines):
                    raise RolledBackError(f"the run goes back to iteration {undone['iteration']}")
                if requests and not self._is_recorded:
                    self._is_recorded = record_start(self._run, state, self.name)
                    if not self._is_recorded:
                        return
                elif requests and newest_learner(lines) == self.name:
                    self._answer(requests[0], state, iteration)
                else:
                    self._size = size
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("a request in the journal cannot be answered now: %s", error)

    def at(self, iteration: int) -> IterationConfig:
        """The configuration that an iteration is trained by.

        Raises:
            ConfigError: If what was set does not go with `run.yaml`, which has changed since.
        """
        settings = settings_of_iteration(self._held, iteration)
        if settings != self._latest.settings:
            config = with_settings(self._run.config, settings)
            self._latest = IterationConfig(config=config, settings=settings)
        return self._latest

    def changed_at(self, iteration: int) -> dict[str, Any]:
        """The keys that an iteration is the first to have other values of, with these."""
        before, now = (settings_of_iteration(self._held, one) for one in (iteration - 1, iteration))
        return {key: value for key, value in now.items() if before.get(key, value_of(self._run.config, key)) != value}

    def _answer(self, request: Line, state: CheckpointState, iteration: int) -> None:
        if ROLLBACK in request:
            answer_rollback(self._run, request, state, self.name)
            return
        answer = {"id": request["id"], "why": request.get("why", ""), "learner": self.name}
        try:
            keys = self._changes(request.get("set"), iteration)
        except (ConfigError, RecursionError) as error:
            logger.info("refused a request: %s", error)
            append(self._run.directory, REFUSED, asdict(state), **answer, reason=str(error))
            return
        for key in keys:
            logger.info("%s: %s -> %s from iteration %d on", key["key"], key["old"], key["new"], iteration)
        append(self._run.directory, SET, asdict(state) | {"iteration": iteration}, **answer, keys=keys)

    def _changes(self, asked: Any, iteration: int) -> list[Line]:
        """The changes that a request asks for: keys with old and new values.

        Raises:
            ConfigError: If they do not go with the rest, now or with what is to change later.
        """
        if not isinstance(asked, dict) or not asked:
            raise ConfigError(f"a request must set keys, got {asked!r}")
        later = {line["iteration"] for line in self._held if line["iteration"] > iteration}
        for one in (*later, iteration):
            before = settings_of_iteration(self._held, one)
            config = with_settings(self._run.config, before | asked)
        old = {key: before.get(key, value_of(self._run.config, key)) for key in asked}
        return [{"key": key, "old": old[key], "new": value_of(config, key)} for key in asked]
