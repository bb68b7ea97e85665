"""Assigns GPUs and cores to the processes of a local fleet: a pure function of configuration and machine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from minefleet.config import FleetConfig
from minefleet.launch.machine import VISIBLE_DEVICES, Machine

ALL_CORES = "MINEFLEET_ALL_CORES"
"""Names the fleet's cores to a process that is tied to some of them: the launcher's, which environments use, too."""
ONE_THREAD_EACH: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
)
"""Unless set outside: the roles share the cores. torch's own threads are in the configuration."""
ROUNDING = 1e-6
"""Ten tenths of a GPU are one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPlacement:
    """The cores and GPUs of one process."""

    gpus: tuple[str, ...] = ()
    """Those that it sees; empty leaves it those that the launcher sees."""
    cores: tuple[int, ...] = ()
    """Those that it runs on; empty leaves it those that the launcher runs on."""
    all_cores: tuple[int, ...] = ()
    """Those of the fleet, on which environment processes run; empty where `cores` is."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the process."""
        variables = {}
        if self.gpus:
            variables[VISIBLE_DEVICES] = ",".join(self.gpus)
        if self.all_cores:
            variables[ALL_CORES] = ",".join(map(str, self.all_cores))
        return variables


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The placement of all processes of a fleet."""

    learners: tuple[ProcessPlacement, ...]
    """Of each rank."""
    actors: tuple[ProcessPlacement, ...]
    others: ProcessPlacement
    """Of replay, parameters and the evaluator."""
    notes: tuple[str, ...] = ()
    """Requests that cannot be met, as messages."""


def _asks_for_gpus(config: FleetConfig) -> bool:
    """Whether any process wants a GPU of its own."""
    rollout = config.rollout_config
    return config.train_config.num_gpus_per_worker > 0 or (
        rollout.num_rollout_workers > 0 and rollout.num_gpus_per_worker > 0
    )


def place(config: FleetConfig, machine: Machine) -> Placement:
    """Places the processes that `minefleet train` starts.

    The learner's ranks take their GPUs first, then the actors theirs, in order, each the first ones with room for its
    share. Where there are too few, processes share those with the least on them.
    """
    gpus, gpu_notes = _place_gpus(config, machine)
    cores, core_notes = _place_cores(config, machine)
    ranks = config.train_config.num_workers
    return Placement(
        learners=tuple(_tied(cores.learner, machine, own) for own in gpus[:ranks]),
        actors=tuple(_tied(its, machine, own) for own, its in zip(gpus[ranks:], cores.actors, strict=True)),
        others=_tied(cores.others, machine),
        notes=(*gpu_notes, *core_notes),
    )


def _place_gpus(config: FleetConfig, machine: Machine) -> tuple[list[tuple[str, ...]], list[str]]:
    """GPUs of each rank and then of each actor, and notes."""
    train, rollout = config.train_config, config.rollout_config
    unplaced: list[tuple[str, ...]] = [()] * (train.num_workers + rollout.num_rollout_workers)
    if not _asks_for_gpus(config):
        return unplaced, []
    wanted = _gpu_requests(config)
    if not machine.gpus:
        return unplaced, [f"{wanted}, but there are none here: all run on the CPU"]
    loads = [0.0] * len(machine.gpus)
    shares = [train.num_gpus_per_worker] * train.num_workers + [
        rollout.num_gpus_per_worker
    ] * rollout.num_rollout_workers
    taken = [_take(loads, share) for share in shares]
    crowded = max(loads) > 1 + ROUNDING or sum(shares) > len(loads) + ROUNDING
    notes = [f"{wanted}, but there are {len(loads)} here: they are shared"] if crowded else []
    return [tuple(machine.gpus[number] for number in numbers) for numbers in taken], notes


def _gpu_requests(config: FleetConfig) -> str:
    train, rollout = config.train_config, config.rollout_config
    requests = []
    if train.num_gpus_per_worker:
        requests.append(f"train_config.num_gpus_per_worker={train.num_gpus_per_worker:g}")
    if rollout.num_gpus_per_worker and rollout.num_rollout_workers:
        actors = f"num_rollout_workers={rollout.num_rollout_workers}"
        requests.append(f"rollout_config.num_gpus_per_worker={rollout.num_gpus_per_worker:g} with {actors}")
    return f"GPUs are asked for by {' and '.join(requests)}"


def _take(loads: list[float], share: float) -> list[int]:
    """Numbers of the GPUs for a share of a GPU, or for several whole ones; adds it to their loads."""
    if share <= 0:
        return []
    each = min(share, 1.0)
    number = min(math.ceil(share - ROUNDING), len(loads))
    free = [gpu for gpu, load in enumerate(loads) if load + each <= 1 + ROUNDING]
    by_load = sorted(range(len(loads)), key=lambda gpu: loads[gpu])
    chosen = sorted((free if len(free) >= number else by_load)[:number])
    for gpu in chosen:
        loads[gpu] += each
    return chosen


class _Cores(NamedTuple):
    """The cores of each role; none where the kernel chooses."""

    learner: tuple[int, ...]
    """Of all ranks."""
    actors: Sequence[tuple[int, ...]]
    others: tuple[int, ...]


def _tied(own: tuple[int, ...], machine: Machine, gpus: tuple[str, ...] = ()) -> ProcessPlacement:
    return ProcessPlacement(gpus=gpus, cores=own, all_cores=machine.cores if own else ())


def _place_cores(config: FleetConfig, machine: Machine) -> tuple[_Cores, list[str]]:
    """Cores of each role, and notes."""
    rollout = config.rollout_config
    actors, each = rollout.num_rollout_workers, math.ceil(rollout.num_cpus_per_worker)
    unpinned = _Cores((), [()] * actors, ())
    if not actors:
        return unpinned, []
    if not each:
        return (_separate_learner(config, machine) if _are_cores_scarce(config, machine) else unpinned), []
    train = config.train_config
    readers = round(train.num_readers * train.num_cpus_per_reader)
    others = train.num_workers * (max(train.torch_threads, 1) + readers) + len(config.services.replay) + 1
    if actors * each + others > len(machine.cores):
        note = (
            f"rollout_config.num_cpus_per_worker={rollout.num_cpus_per_worker:g}: {actors * each} cores for actors and "
            f"{others} for the other roles are more than the {len(machine.cores)} here: no process gets its own"
        )
        return unpinned, [note]
    rest = machine.cores[: len(machine.cores) - actors * each]
    own = machine.cores[len(rest) :]
    return _Cores(rest, [own[index * each : (index + 1) * each] for index in range(actors)], rest), []


def _are_cores_scarce(config: FleetConfig, machine: Machine) -> bool:
    """Whether learner and actors take all cores at once, the learner leaves some, and nothing else computes.

    Where there are more cores, the kernel has room to keep the processes apart by itself.
    """
    ranks = config.train_config.num_workers
    threads = max(config.train_config.torch_threads, config.rollout_config.torch_threads)
    processes = ranks + config.rollout_config.num_rollout_workers
    takes_turns = config.rollout_config.replay_buffer_config.takes_turns
    return not machine.gpus and not takes_turns and threads <= 1 and ranks < len(machine.cores) <= processes


def _separate_learner(config: FleetConfig, machine: Machine) -> _Cores:
    """Keeps the learner's cores free of actors, so that it finds its data in their caches.

    Each actor has a core where there are enough, else they share; the other roles and the environments run on all.
    """
    ranks, actors = config.train_config.num_workers, config.rollout_config.num_rollout_workers
    rest = machine.cores[ranks:]
    own = [(core,) for core in rest] if len(rest) == actors else [rest] * actors
    return _Cores(machine.cores[:ranks], own, ())
