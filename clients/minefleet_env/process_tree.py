"""Finds all processes that a process has started, by the kernel's own lists, and ends them by number."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def tie_to(parent_pid: int) -> bool:
    """Makes the kernel send SIGTERM when the parent's thread dies; returns whether the parent still lives."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent_pid


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave behind, sessions of their own included."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The children of a process, adopted ones included; none if it is gone."""
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, listing.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def kill_group(pid: int) -> None:
    """Kills the group of a process. It must not have been reaped: until then, its number is no other's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)


def kill_children(spared: Collection[int] = ()) -> bool:
    """Kills the groups of this process's children, but not those spared; says whether there were any.

    What they have started comes to this process, if it adopts orphans, as soon as they are dead.
    """
    killed = [pid for pid in children(os.getpid()) if pid not in spared]
    for pid in killed:
        kill_group(pid)
    return bool(killed)


def kill_tree(leader: int) -> None:
    """Kills what the leader of a group has started, last its own group. It may be this process."""
    known: set[int] = set()
    while fresh := set(descendants(leader)) - known:
        known |= fresh
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != leader:
                    kill_group(pid)
    kill_group(leader)


class Footprint(NamedTuple):
    """The kernel's numbers of a process."""

    parent: int
    rss_bytes: int
    """Memory that it has touched and that is not swapped out; what it shares with others counts in each."""


def survey() -> dict[int, Footprint]:
    """Reads every process, at about 20 µs each: cheaper than to follow the threads of each tree."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    seen: dict[int, Footprint] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program is in parentheses and may contain anything.
            fields = path.read_bytes().rpartition(b")")[2].split()
            seen[int(path.parent.name)] = Footprint(parent=int(fields[1]), rss_bytes=int(fields[21]) * page_bytes)
    return seen


def oom_kills() -> int:
    """The number of processes that the kernel has killed for want of memory, in this container or on this machine."""
    for listing in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, KeyError, ValueError):
            return int(dict(line.split() for line in Path(listing).read_text().splitlines())["oom_kill"])
    return 0


def weigh(roots: Collection[int], seen: dict[int, Footprint]) -> Iterator[tuple[int, int]]:
    """Yields each root and the memory of it and all its descendants, bytes; 0 for one that is gone."""
    offspring: dict[int, list[int]] = {}
    for pid, footprint in seen.items():
        offspring.setdefault(footprint.parent, []).append(pid)
    for root in roots:
        family = [root]
        for pid in family:
            family += offspring.get(pid, ())
        yield root, sum(seen[pid].rss_bytes for pid in family if pid in seen)
