"""The local supervisor: starts a run's roles, restarts those that die, and drains them all at the end.

    a process ends      its pidfd becomes readable ─┐
    Ctrl-C, SIGTERM     the wake-up socket does    ─┼─▶ one selector ─▶ one loop ─▶ reap, restart, drain
    a restart, a tick   the selector times out     ─┘

Nothing else is waited for, and there is no thread. Each role is a process in a group of its own, so Ctrl-C reaches only
the supervisor; if the supervisor is killed, the kernel kills its roles.

Where the learner has several ranks, each is a process, and they live and die together: when one dies, the others are
killed and all start again. A rank other than rank 0 exits with 0 when rank 0 ends: the run is over, or is rolled back.

The run is over when the learner, its rank 0, exits with 0. A role that exits with 2 has a configuration that cannot
work, and one that dies fast several times in a row will not do better: both end the run with the reason. While the disk
is full, roles are started until they live.

Shutdown: the learner first, since it writes a checkpoint for which it needs the others; then the actors, which send
what they hold; then replay; then parameters. Each gets SIGTERM and, after `grace_s`, SIGKILL. A second Ctrl-C kills at
once.
"""

import math
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from minefleet.core.child_process_start import Start, start_fresh
from minefleet.core.errors import EXIT_AGAIN, EXIT_CONFIG, EXIT_GAVE_UP
from minefleet.core.termination_signal_set import ONE_REQUEST_S, stop_signals
from minefleet.launch.machine import this_machine
from minefleet.launch.placement import ProcessPlacement, place
from minefleet.launch.ports import free_port, is_elsewhere
from minefleet.launch.role_process import NO_VARIABLES, ExitInfo, RoleProcess, quoted, role_command
from minefleet.launch.torchrun_variables import LEARNER, LOOPBACK, is_rank, variables
from minefleet.monitoring.journal import record_restart
from minefleet.monitoring.scrape_targets import keep_targets
from minefleet.runs.run_yaml import Run

ALL, LEARNER_ONLY, WITHOUT_LEARNER = slice(None), slice(1), slice(1, None)
"""Of the stages of a run."""
FAST_DEATHS = 5
"""Fast deaths in a row that end the run."""
FULL_BYTES = 2**20
"""A disk with less room is full: none of a role's logs, stores and checkpoints can be relied on there."""
TICK_S = 0.5
DRAIN_MARGIN_S = 10.0
"""Time that a role gets beyond `services.drain_s`, to end its environments or its iteration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnd:
    """Why a run ended."""

    stopped_by: Literal["learner", "signal", "failure"]
    reason: str = ""
    """In one line, with what the role said below it; empty for the learner's own end."""
    is_config_error: bool = False


@dataclass(kw_only=True, slots=True)
class RoleSupervisor:
    """Runs a table of children, stage by stage in the order in which they are drained."""

    stages: Sequence[Sequence[RoleProcess]]
    grace_s: float
    """Longest drain of one stage, seconds."""
    report: Callable[[str], None]
    """Called with every death and every decision, as text for people."""
    tick: Callable[[], None] = lambda: None
    """Called every `TICK_S`. So is `write_targets`, and once more when all children have ended."""
    write_targets: Callable[[], None] = lambda: None
    on_restart: Callable[[str, str], None] = lambda name, how: None
    """Called with the name of a child that has died and will start again, and how it ended."""
    clock: Callable[[], float] = time.monotonic
    _selector: selectors.BaseSelector = field(init=False, default_factory=selectors.DefaultSelector)
    _asked: int = field(init=False, default=0)
    """Requests to stop."""
    _asked_s: float = field(init=False, default=-math.inf)
    """When the last one came."""
    _next_tick_s: float = field(init=False, default=0.0)
    _is_full: bool = field(init=False, default=False)
    """Whether the disk was full when the last child died."""

    @property
    def children(self) -> list[RoleProcess]:
        """All of them."""
        return [child for stage in self.stages for child in stage]

    def run(self) -> LaunchEnd:
        """Starts all children, keeps them alive until the run is over, and drains them."""
        with self._listening():
            try:
                for child in reversed(self.children):
                    self._start(child)
                ending = self._watch()
                self._drain()
            finally:
                self._kill()
                self.write_targets()
            return ending

    def _watch(self) -> LaunchEnd:
        while True:
            for child, death in self._wait(self._idle_s()):
                ending = self._judge(child, death)
                if ending is not None:
                    return ending
            if self._asked:
                self.report("stopping: a checkpoint first, then the other roles (once more to kill)")
                return LaunchEnd(stopped_by="signal", reason="asked to stop")
            for child in self.children:
                if child.due_s is not None and self.clock() >= child.due_s:
                    self._start(child)

    def _judge(self, child: RoleProcess, death: ExitInfo) -> LaunchEnd | None:
        """Puts a dead child off, or says why the run ends."""
        if death.code == 0 and is_rank(child.name):
            return LaunchEnd(stopped_by="learner") if child.name == LEARNER else None
        obituary, last_words = f"{child.name} {death.story}", quoted(death.last_words)
        if death.code == EXIT_CONFIG:
            reason = f"{child.name} cannot work with this configuration:{quoted(death.last_record)}"
            return LaunchEnd(stopped_by="failure", reason=reason, is_config_error=True)
        if self._waits_for_room(child):
            return None
        if death.code == EXIT_GAVE_UP:
            reason = f"{child.name} gave up; see {child.log}:{quoted(death.last_record)}"
            return LaunchEnd(stopped_by="failure", reason=reason)
        if child.fast_deaths >= FAST_DEATHS:
            reason = f"{obituary}, fast for {child.fast_deaths} times in a row; see {child.log}:{last_words}"
            return LaunchEnd(stopped_by="failure", reason=reason)
        self._end_with(child)
        if death.code != EXIT_AGAIN:
            self.on_restart(child.name, death.how)
        self.report(f"{obituary}; it starts again in {child.put_off():.1f} s. Its last words:{last_words}")
        return None

    def _waits_for_room(self, dead: RoleProcess) -> bool:
        """Puts a child off that died while the disk is full, which is no fault of its own, and says so once."""
        directory, was_full = dead.log.parent, self._is_full
        self._is_full = shutil.disk_usage(directory).free < FULL_BYTES
        if self._is_full:
            if not was_full:
                self.report(f"the disk of {directory} is full: roles that die of it start again until there is room")
            dead.fast_deaths = min(dead.fast_deaths, FAST_DEATHS - 1)
            self._end_with(dead)
            dead.put_off()
        return self._is_full

    def _end_with(self, dead: RoleProcess) -> None:
        """Kills the other ranks, where the dead one was a rank, and puts them off as long as it will be."""
        others = [child for child in self.children if is_rank(child.name) and child is not dead]
        for rank in others if is_rank(dead.name) else []:
            if rank.is_alive:
                self._kill([rank])
            rank.fast_deaths = dead.fast_deaths
            rank.put_off()

    def _drain(self) -> None:
        for stage in self.stages:
            for child in stage:
                child.due_s = None
                child.terminate()
            self._await_end(stage)

    def _await_end(self, stage: Sequence[RoleProcess]) -> None:
        deadline_s = self.clock() + self.grace_s
        while alive := [child for child in stage if child.is_alive]:
            left_s = deadline_s - self.clock()
            if left_s <= 0 or self._asked > 1:
                self.report(f"killing {', '.join(child.name for child in alive)}")
                return self._kill(alive)
            for child, death in self._wait(min(left_s, self._idle_s())):
                if death.code != 0:
                    self.report(f"{child.name} has ended ({death.how})")
        return None

    def _kill(self, children: Sequence[RoleProcess] | None = None) -> None:
        for child in self.children if children is None else children:
            if child.is_alive:
                child.kill()
                self._reap(child)

    def _start(self, child: RoleProcess) -> None:
        child.start()
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    def _reap(self, child: RoleProcess) -> ExitInfo:
        self._selector.unregister(child.pidfd)
        return child.reap()

    def _wait(self, timeout_s: float) -> list[tuple[RoleProcess, ExitInfo]]:
        """Waits for something to happen; returns who has died."""
        deaths = []
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, RoleProcess):
                deaths.append((key.data, self._reap(key.data)))
            else:
                key.data.recv(4096)
                if self.clock() - self._asked_s > ONE_REQUEST_S:
                    self._asked += 1
                    self._asked_s = self.clock()
        if self.clock() >= self._next_tick_s:
            self._next_tick_s = self.clock() + TICK_S
            self.write_targets()
            self.tick()
        return deaths

    def _idle_s(self) -> float:
        """Until the next restart or tick."""
        due = [self._next_tick_s, *(child.due_s for child in self.children if child.due_s is not None)]
        return max(0.0, min(due) - self.clock())

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Makes signals wake the selector."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = {signum: signal.signal(signum, lambda *_: None) for signum in stop_signals()}
        descriptor = signal.set_wakeup_fd(writer.fileno())
        self._selector.register(reader, selectors.EVENT_READ, reader)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for signum, handler in before.items():
                signal.signal(signum, handler)
            self._selector.close()
            reader.close()
            writer.close()


def supervisor(
    run: Run,
    report: Callable[[str], None],
    tick: Callable[[], None] = lambda: None,
    *,
    stages: slice = ALL,
    start: Start = start_fresh,
) -> RoleSupervisor:
    """The supervisor of some stages of a run's own roles, each in its place on this machine.

    `start` starts those that import torch.
    """
    placement = place(run.config, this_machine())
    for note in placement.notes:
        report(note)
    players = [
        _child(run, "actor", f"actor-{index}", at, index, start=start) for index, at in enumerate(placement.actors)
    ]
    if run.config.eval_interval:
        players.append(_child(run, "actor.evaluator", "evaluator", placement.others, start=start))
    return RoleSupervisor(
        stages=[
            _ranks(run, placement.learners, start),
            players,
            [
                _child(run, "replay", shard.name, placement.others, shard.index)
                for shard in run.shards
                if not is_elsewhere(shard.endpoint.address)
            ],
            [_child(run, "parameters", "parameters", placement.others)],
        ][stages],
        grace_s=run.config.services.drain_s + DRAIN_MARGIN_S,
        report=report,
        tick=tick,
        write_targets=lambda: keep_targets(run.directory),
        on_restart=partial(record_restart, run.directory),
    )


def _ranks(run: Run, places: Sequence[ProcessPlacement], start: Start) -> list[RoleProcess]:
    """The learner: its rank 0, and then the others."""
    port = free_port(LOOPBACK) if len(places) > 1 else 0
    names = [LEARNER, *(f"{LEARNER}-{rank}" for rank in range(1, len(places)))]
    return [
        _child(run, LEARNER, name, at, variables=variables(rank, len(places), port), start=start)
        for rank, (name, at) in enumerate(zip(names, places, strict=True))
    ]


def _child(
    run: Run,
    role: str,
    name: str,
    at: ProcessPlacement,
    index: int = 0,
    variables: Mapping[str, str] = NO_VARIABLES,
    start: Start = start_fresh,
) -> RoleProcess:
    command = role_command(role, run.directory, index)
    return RoleProcess(name, command, run.logs / f"{name}.log", place=at, variables=variables, start=start)
