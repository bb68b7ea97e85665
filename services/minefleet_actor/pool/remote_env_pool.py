"""A pool of environments that hosts run elsewhere, each over a stream that it has opened to this actor.

                    Commands, several worlds each
    ┌────────────┐ ───────────────────────────────▶ ┌──────┐
    │ HostedPool │                                  │ host │ × as many as dial in
    └────────────┘ ◀─────────────────────────────── └──────┘
                    Results, several worlds each

A host that dials in gets slots that have none, at most as many as it has worlds. A slot without a host keeps its reset
until one comes. A host that leaves, talks nonsense or is overdue is cut off; what its slots were doing is reported as
FAILED, once, as of a process that died. How long a slot pauses after failures of its worlds is the same as elsewhere.

Start, wait and close belong to one thread. Threads of the server call `join`, and put what hosts say into the inbox.
"""

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.errors import ContractError, DeadlineError, FleetError, OverloadedError, RejectedError
from minefleet.core.schema import Schema
from minefleet.rpc.handshake import WIRE_VERSION
from minefleet.v1 import worlds_service_pb2
from minefleet_actor.pool.base_pool import Pool
from minefleet_actor.pool.failure_log_limiter import FailureLog
from minefleet_actor.pool.host_link import Arrived, HostLink, Inbox, WorldOutcome
from minefleet_actor.pool.pool_results import Failure, Ready
from minefleet_actor.pool.process_supervisor import timeouts_s
from minefleet_env import shared_slot_arrays
from minefleet_env.process_messages import Command, EpisodeEnd, Reply

RETRY_S = 5.0
"""Time after which a host that found no free slot tries again."""


class HostedPool(Pool):
    """Environments on hosts that dial in; see `Pool` for the contract."""

    def __init__(self, env_config: EnvConfig, schema: Schema, worker_config: WorkerConfig, **options: Any) -> None:
        super().__init__(env_config, schema, worker_config, **options)
        self._spaces = schema
        self._timeouts_s = timeouts_s(worker_config)
        self._log = FailureLog()
        self._inbox: Inbox = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = list(range(worker_config.num_envs))
        """Slots without a host, rising; guarded by the lock."""
        self._links: list[HostLink] = []

    def start(self) -> None:
        """Returns at once: hosts may come at any time."""
        self._slot_states.arrays = shared_slot_arrays.private(self._schema, self.num_slots, self._frame_shape)

    def join(self, hello: worlds_service_pb2.Hello, cancel: Callable[[], object]) -> HostLink:
        """Gives a host slots. May be called from any thread.

        Args:
            hello: The host's first message.
            cancel: Cancels its call, whether it reads or not.

        Raises:
            ContractError: If the host speaks another wire version.
            RejectedError: If it offers nothing.
            OverloadedError: If every slot has a world.
        """
        if hello.wire_version != WIRE_VERSION:
            raise ContractError(f"the host speaks wire version {hello.wire_version}, this actor {WIRE_VERSION}")
        if not hello.worlds:
            raise RejectedError("a host must offer at least one world")
        name = "".join(filter(str.isprintable, hello.name))[:100]
        height, width = (self._frame_shape or (0, 0))[:2]
        welcome = worlds_service_pb2.Welcome(
            schema=json.dumps(self._schema), frame_height=height, frame_width=width, discount=self._discount
        )
        with self._lock:
            slots, self._free = self._free[: hello.worlds], self._free[hello.worlds :]
            if not slots:
                raise OverloadedError(f"each of the {self.num_slots} slots of this actor has a world", RETRY_S)
            link = HostLink(name, slots, None if hello.keeps_time else self._timeouts_s, cancel)
            welcome.worlds = len(slots)
            link.welcome(welcome)
            self._inbox.put(Arrived(link))
        return link

    @property
    def hosts(self) -> Mapping[str, int]:
        """See `Pool`."""
        counts = Counter[str]()
        for link in self._links:
            counts[link.name] += len(link.slots)
        return counts

    @property
    def inbox(self) -> Inbox:
        """Takes what hosts say."""
        return self._inbox

    def wait(self, timeout_s: float) -> Ready:
        """Passes on what was asked for, then waits until a slot has news, `wake` is called or the time is over.

        Raises:
            EnvGaveUpError: If no environment is left that works.
        """
        until_s, idle_s, was_woken = time.monotonic() + timeout_s, 0.0, False
        self._pass_on()
        while not (self._slot_states.has_results or was_woken):
            began_s = time.monotonic()
            try:
                arrived = self._inbox.get(timeout=max(0.0, min(until_s, self._next_s()) - began_s))
                idle_s += time.monotonic() - began_s
                was_woken = self._take(arrived)
                while not self._inbox.empty():
                    was_woken |= self._take(self._inbox.get())
            except queue.Empty:
                idle_s += time.monotonic() - began_s
                if time.monotonic() >= until_s:
                    break
            self._cut_off_overdue()
            self._pass_on()
        return self._slot_states.take(idle_s)

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""
        self._inbox.put(None)

    def close(self) -> None:
        """Ends every stream. The hosts go on looking for an actor."""
        with self._lock:
            self._free = []
        while not self._inbox.empty():  # A host may have come since the last `wait`.
            if (arrived := self._inbox.get()) is not None:
                self._links.append(arrived.link)
        for link in set(self._links):
            link.end()
        self._links = []
        self._slot_states.arrays = shared_slot_arrays.private(self._schema, 0)

    def _take(self, arrived: Arrived | None) -> bool:
        """Does what an arrival calls for; says whether it was a `wake`."""
        if arrived is None:
            return True
        link = arrived.link
        if arrived.end is not None:
            self._lose(link, Failure("exit", str(arrived.end)), arrived.end)
        elif arrived.results is None:
            self._links.append(link)
        elif link in self._links:
            try:
                outcomes = link.apply(arrived.results, self._spaces, self._slot_states.arrays)
            except RejectedError as error:
                self._lose(link, Failure("contract", f"host {link.name}: {error}"), error)
            else:
                self._record(link, outcomes)
        return False

    def _record(self, link: HostLink, outcomes: Sequence[WorldOutcome]) -> None:
        kinds = bytearray(self.num_slots)
        endings: dict[int, EpisodeEnd] = {}
        failures: dict[int, Failure] = {}
        for outcome in outcomes:
            kinds[outcome.slot] = outcome.kind
            if outcome.ending is not None:
                endings[outcome.slot] = outcome.ending
            if outcome.failure is not None:
                failures[outcome.slot] = outcome.failure
                text = f"host {link.name}, slot {outcome.slot}: {outcome.failure.text}"
                self._log.record(Failure(outcome.failure.kind, text), time.monotonic())
        self._slot_states.record(Reply(bytes(kinds), endings, failures), range(self.num_slots))

    def _lose(self, link: HostLink, failure: Failure, error: FleetError | None) -> None:
        """Cuts a host off; its slots wait for another one."""
        if link not in self._links:
            return
        self._links.remove(link)
        link.end(error)
        self._log.record(failure, time.monotonic())
        self._slot_states.lose(link.slots.tolist(), failure)
        with self._lock:
            self._free = sorted([*self._free, *link.slots.tolist()])

    def _cut_off_overdue(self) -> None:
        now_s = time.monotonic()
        for link in [link for link in self._links if link.due_s <= now_s]:
            error = DeadlineError(f"a world of host {link.name} took longer than it may")
            self._lose(link, Failure("hang", str(error)), error)

    def _pass_on(self) -> None:
        """Passes on the commands of slots that have a host and need not pause."""
        now_s, command = time.monotonic(), self._slot_states.command
        if not command.any():
            return
        may_go = (command != Command.NONE) & ((command == Command.STEP) | (self._slot_states.breaker.until_s <= now_s))
        for link in self._links:
            worlds = np.flatnonzero(may_go[link.slots] & link.idle)
            if len(worlds):
                slots = link.slots[worlds]
                link.send(worlds, command[slots], self._slot_states.arrays)
                command[slots] = Command.NONE

    def _next_s(self) -> float:
        """When the next pause that a reset waits for is over, or a command overdue; always within an hour."""
        waiting = self._slot_states.breaker.until_s[self._slot_states.command >= Command.RESET]
        ahead = waiting[waiting > time.monotonic()]
        return float(min([time.monotonic() + 3600.0, *(link.due_s for link in self._links), *ahead.tolist()]))
