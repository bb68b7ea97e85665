"""After any kill no process of a pool or its environments stays: all of them carry a mark."""

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.envs import make, schema_of
from minefleet_actor.pool import EnvPool, Kind

FAULTY = Path(__file__).with_name("faulty_env.py")
PATIENCE_S = 60.0
GO_ON, END, RAISE, HANG, EXIT, GARBAGE, CLOSE_CHANNEL, FLOOD, ESCAPE = 0, 1, 3, 4, 5, 18, 19, 20, 21
SEGFAULT, ABORT, FREEZE = 15, 16, 17
OWNER = """
import sys, threading; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
import test_pool_guard as t
pool = t.open_pool(Path(sys.argv[2]), num_envs=2, step_timeout_s=1000.0)
print("opened", flush=True)
pool.start()
t.command(pool, {0, 1})
t.command(pool, {0, 1}, t.ESCAPE)
pool.step(np.array([1]), np.array([int(sys.argv[3])]))
print(pool.guard_pid, *pool.pids, flush=True)
threading.Event().wait()  # It hears no more: what its guard tells it is unread when it dies.
"""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that this process hands down to all that it starts."""
    mark = f"MINEFLEET_TEST_MARK={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> set[int]:
    """Processes with the mark, but for this one."""
    found = set()
    for surroundings in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in surroundings.read_bytes().split(b"\0"):
                found.add(int(surroundings.parent.name))
    return found - {os.getpid()}


def wait_for_deaths(mark: str) -> None:
    """Returns when no process with the mark is left."""
    while found := marked(mark):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                gone = select.select([handle], [], [], PATIENCE_S)[0]
                os.close(handle)
                assert gone, f"{pid} stays: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"


def open_pool(directory: Path, **worker: Any) -> EnvPool:
    config = EnvConfig(generator=f"{FAULTY}:Faulty", kwargs={"directory": str(directory)})
    with contextlib.closing(make(config)) as env:
        return EnvPool(config, schema_of(env), WorkerConfig(**worker), seed=0, actor_index=0)


def command(pool: EnvPool, slots: set[int], action: int | None = None) -> dict[int, tuple[int, str]]:
    """Steps the slots, or resets them, and returns the kind of what becomes of each, and of its failure."""
    if action is None:
        pool.reset(np.array(sorted(slots)))
    else:
        pool.step(np.array(sorted(slots)), np.full(len(slots), action))
    said: dict[int, tuple[int, str]] = {}
    while set(said) != slots:
        ready = pool.wait(PATIENCE_S)
        assert len(ready.slots), "nothing happened"
        for slot, kind in zip(ready.slots.tolist(), ready.kind.tolist(), strict=True):
            assert slot not in said
            said[slot] = (kind, ready.failures[slot].kind if kind == Kind.FAILED else "")
    return said


def owner_of_a_pool(directory: Path, last_action: int) -> subprocess.Popen[str]:
    arguments = [str(Path(__file__).parent), str(directory), str(last_action)]
    return subprocess.Popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE, text=True)


def line_of(owner: subprocess.Popen[str]) -> str:
    assert owner.stdout is not None
    return owner.stdout.readline()


@pytest.mark.parametrize(
    ("victims", "last_action"),
    [("owner", FREEZE), ("worker, owner", HANG), ("owner, workers", GO_ON), ("guard, owner", HANG)],
)
def test_environments_die_with_the_process_of_their_pool_whatever_else_is_killed(
    victims: str, last_action: int, mark: str, tmp_path: Path
) -> None:
    with owner_of_a_pool(tmp_path, last_action) as owner:
        line_of(owner)
        guard, *workers = map(int, line_of(owner).split())
        assert len(marked(mark)) > 4
        groups = {"owner": [owner.pid], "worker": workers[:1], "workers": workers, "guard": [guard]}
        for victim in [pid for name in victims.split(", ") for pid in groups[name]]:
            # The guard may be faster with the workers of an owner that is gone.
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            if victim != owner.pid:
                wait_for_death(victim)
    wait_for_deaths(mark)


@pytest.mark.parametrize("seed", range(4))
def test_environments_die_with_their_actor_killed_at_any_moment_of_the_pools_start(
    seed: int, mark: str, tmp_path: Path
) -> None:
    with owner_of_a_pool(tmp_path, GO_ON) as owner:
        line_of(owner)
        with contextlib.suppress(subprocess.TimeoutExpired):
            owner.wait(random.Random(seed).uniform(0.0, 1.5))
        owner.kill()
    wait_for_deaths(mark)


def test_children_of_an_environment_die_with_its_process(mark: str, tmp_path: Path) -> None:
    with contextlib.closing(open_pool(tmp_path, num_envs=2)) as pool:
        pool.start()
        command(pool, {0, 1})
        alone = marked(mark)
        for death in (EXIT, SEGFAULT, ABORT, RAISE, GARBAGE, CLOSE_CHANNEL):
            command(pool, {0}, ESCAPE)
            assert len(marked(mark)) > len(alone)
            before = marked(mark) - {pool.guard_pid, pool.pids[1]}
            assert command(pool, {0}, death)[0][0] == Kind.FAILED
            command(pool, {0})
            for pid in before & marked(mark):
                wait_for_death(pid)
            assert len(marked(mark)) == len(alone)
            command(pool, {0}, END)
            command(pool, {0})
    wait_for_deaths(mark)


def wait_for_death(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        assert select.select([handle], [], [], PATIENCE_S)[0], f"{pid} stays"
        os.close(handle)


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (RAISE, "exception"),
        (EXIT, "exit"),
        (SEGFAULT, "exit"),
        (ABORT, "exit"),
        (FREEZE, "hang"),
        (GARBAGE, "contract"),
        (CLOSE_CHANNEL, "exit"),
    ],
)
def test_pool_reports_each_kind_of_failure_once(action: int, kind: str, tmp_path: Path) -> None:
    with contextlib.closing(open_pool(tmp_path, num_envs=2, step_timeout_s=1.0)) as pool:
        pool.start()
        command(pool, {0, 1})
        assert command(pool, {0}, action) == {0: (Kind.FAILED, kind)}
        assert command(pool, {1}, FLOOD) == {1: (Kind.STEP, "")}
        assert command(pool, {0}) == {0: (Kind.RESET, "")}
        assert command(pool, {0, 1}, GO_ON) == {0: (Kind.STEP, ""), 1: (Kind.STEP, "")}


def test_pool_replaces_a_killed_guard_and_its_processes(mark: str, tmp_path: Path) -> None:
    with contextlib.closing(open_pool(tmp_path, num_envs=2)) as pool:
        pool.start()
        command(pool, {0, 1})
        command(pool, {0, 1}, ESCAPE)
        before, guard = marked(mark), pool.guard_pid
        pool.step(np.array([1]), np.array([FREEZE]))
        os.kill(guard, signal.SIGKILL)
        failed: set[int] = set()
        while failed != {0, 1}:
            ready = pool.wait(PATIENCE_S)
            assert set(ready.kind.tolist()) == {Kind.FAILED}
            failed |= set(ready.slots.tolist())
        assert command(pool, {0, 1}) == {0: (Kind.RESET, ""), 1: (Kind.RESET, "")}
        assert pool.guard_pid not in (0, guard)
        for pid in before:
            wait_for_death(pid)
    wait_for_deaths(mark)


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.soak)])
def test_failures_of_environments_leak_nothing_in_the_process_of_their_pool(
    count: int, mark: str, tmp_path: Path
) -> None:
    with contextlib.closing(open_pool(tmp_path, num_envs=8)) as pool:
        pool.start()
        command(pool, set(range(8)))
        before = belongings()
        fail(pool, count, (END, RAISE, END, EXIT, END, SEGFAULT, END, GARBAGE, END, CLOSE_CHANNEL))
        assert belongings() == before
        assert len(marked(mark)) == 9
    wait_for_deaths(mark)


def fail(pool: EnvPool, count: int, plan: tuple[int, ...]) -> None:
    """Has every slot do what the plan says, until there were so many failures and all have new episodes."""
    plans = [itertools.islice(itertools.cycle(plan), slot, None) for slot in range(pool.num_slots)]
    failures, begun = 0, set(range(pool.num_slots))
    for slot in begun:
        pool.step(np.array([slot]), np.array([next(plans[slot])]))
    begun.clear()
    while len(begun) < pool.num_slots:
        ready = pool.wait(PATIENCE_S)
        for slot, kind in zip(ready.slots, ready.kind, strict=True):
            failures += kind == Kind.FAILED
            if kind != Kind.RESET:
                pool.reset(np.array([slot]))
                begun.discard(int(slot))
            elif failures < count:
                pool.step(np.array([slot]), np.array([next(plans[slot])]))
            else:
                begun.add(int(slot))


def belongings() -> tuple[int, int, int]:
    """Numbers of this process's descriptors, mappings of pools and children."""
    maps = Path("/proc/self/maps").read_text()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("minefleet-pool"), len(children)
