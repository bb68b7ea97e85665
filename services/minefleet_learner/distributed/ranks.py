"""The ranks of one learner: what they sum, what they tell each other, and how they find each other.

    collectives    sum, largest, gather, merge    every rank calls the same ones in the same order
    messages       rank 0 ── broadcast ─▶ the store ── receive ─▶ every other rank, in order

Collectives are bounded by `train_config.rank_timeout_s`. A message may come late, since rank 0 may wait for fragments
or for parameters as long as it takes: `receive` waits until rank 0 sends something or is gone.

Ranks find each other by the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. What they
tell each other is JSON. A rank alone has no process group, and its collectives do nothing.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # It is public, but its stub hides it.
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from minefleet.core.errors import ConfigError, FleetError
from minefleet.launch.torchrun_variables import ADDRESS, LOCAL_RANK, PORT, SIZE, rank_here, size_here
from minefleet.policies.layers.mergeable_moments import Moments, merge

AGENT_HOSTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
FOR_EVER = timedelta(days=3650)
MESSAGES, LEAVING = "messages", "leaving"


class RanksError(FleetError):
    """The ranks have lost each other, or are not alike. All start again from the checkpoint."""


class Ranks:
    """The ranks of a learner, seen from one of them. Any thread may `tell`; all else is for one thread."""

    def __init__(self, rank: int = 0, size: int = 1, *, store: Store | None = None, device_group: Any = None) -> None:
        """A rank that is alone, unless more is given; `join` does.

        Args:
            rank: This one, in [0, size).
            size: How many there are.
            store: Holds the messages; None for a rank alone.
            device_group: Process group for tensors that are not on the CPU; None for that of the CPU.
        """
        self.rank = rank
        self.size = size
        self._store = store
        self._device_group = device_group
        self._lock = threading.Lock()
        self._messages = 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sums tensors over all ranks, in place: one collective for those of one dtype and device."""
        if self.is_alone:
            return
        for alike in _by_kind(tensors):
            flat = torch.cat([tensor.flatten() for tensor in alike])
            self._all_reduce(flat, dist.ReduceOp.SUM)
            for tensor, summed in zip(alike, torch.split(flat, [tensor.numel() for tensor in alike]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest over all ranks, element by element."""
        if self.is_alone:
            return tensor
        tensor = tensor.clone()
        self._all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def merge(self, moments: Moments) -> Moments:
        """The moments of the rows of all ranks, the same to the last bit on each."""
        if self.is_alone:
            return moments
        mine = torch.cat((moments.count.view(1), moments.mean.flatten(), moments.spread.flatten()))
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        with _lost():
            dist.all_gather(parts, mine, group=self._group(mine))
        return merge([_moments(part, moments.mean.shape) for part in parts])

    def gather(self, data: Any) -> list[Any]:
        """Plain data of every rank, by rank."""
        if self.is_alone:
            return [data]
        mine = torch.frombuffer(bytearray(json.dumps(data).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _lost():
            dist.all_gather(sizes, torch.tensor([len(mine)]))
            longest = int(torch.cat(sizes).max())
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(parts, torch.nn.functional.pad(mine, (0, longest - len(mine))))
        return [json.loads(bytes(part[: int(size)].tolist())) for part, size in zip(parts, sizes, strict=True)]

    def broadcast(self, message_to: Callable[[int], Any]) -> None:
        """Sends plain data from rank 0 to every other rank."""
        if self._store is None:
            return
        with self._lock, _lost():
            self._messages += 1
            for rank in range(1, self.size):
                self._store.set(f"{MESSAGES}/{rank}/{self._messages}", json.dumps(message_to(rank)))

    def receive(self) -> dict[str, Any]:
        """Waits for the next message of rank 0.

        Raises:
            RanksError: If rank 0 is gone.
        """
        assert self._store is not None
        self._messages += 1
        key = f"{MESSAGES}/{self.rank}/{self._messages}"
        with _lost():
            self._store.wait([key], FOR_EVER)
            message: dict[str, Any] = json.loads(self._store.get(key))
            self._store.delete_key(key)
        return message

    def exit_barrier(self) -> None:
        """Ends it in good order: rank 0, which may hold the store, goes last."""
        if self._store is None:
            return
        with _lost():
            if self.rank > 0:
                self._store.set(f"{LEAVING}/{self.rank}", "")
            else:
                self._store.wait([f"{LEAVING}/{rank}" for rank in range(1, self.size)])

    def close(self) -> None:
        """Leaves the group; the second time does nothing."""
        if self._store is not None:
            self._store = None
            dist.destroy_process_group()

    def _group(self, tensor: Tensor) -> Any:
        return None if tensor.device.type == "cpu" else self._device_group

    def _all_reduce(self, tensor: Tensor, operation: Any) -> None:
        with _lost():
            dist.all_reduce(tensor, operation, group=self._group(tensor))


SINGLE_RANK = Ranks()


def join(num_workers: int, timeout_s: float, device: torch.device) -> Ranks:
    """Meets the other ranks, if there are any.

    Args:
        num_workers: How many there shall be.
        timeout_s: Longest wait for them, here and in every collective, seconds.
        device: What this rank trains on.

    Raises:
        ConfigError: If as many were not started.
        RanksError: If they do not meet in time.
    """
    size = size_here()
    if size != num_workers:
        raise ConfigError(
            f"train_config.num_workers={num_workers}, but {size} ranks were started ({SIZE}); `minefleet train` "
            f"starts them, and so does `torchrun --nproc-per-node {num_workers} -m minefleet_learner --run-dir DIR`"
        )
    if size == 1:
        return SINGLE_RANK
    with _lost():
        rank, store = rank_here(), _store(timedelta(seconds=timeout_s))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
        ranks = Ranks(rank, size, store=store)
        if device.type == "cuda" and _all_differ(ranks.gather(_name_of(device))):
            ranks = Ranks(rank, size, store=store, device_group=dist.new_group(backend="nccl"))
    return ranks


def own_device(device: torch.device) -> torch.device:
    """This rank's device: of all GPUs that it sees, the one with its number on this machine."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get(LOCAL_RANK, "0")) % torch.cuda.device_count())


def _store(timeout: timedelta) -> Store:
    """The meeting point of ranks: torchrun's, or rank 0's own, which listens on MASTER_ADDR only."""
    if os.environ.get(AGENT_HOSTS_STORE) == str(True):
        met: Store = next(rendezvous("env://", timeout=timeout))[0]
        return met
    host, port = os.environ[ADDRESS], int(os.environ[PORT])
    listening = socket.create_server((host, port)).detach() if rank_here() == 0 else None
    own: Store = TCPStore(
        host,
        port,
        size_here(),
        is_master=listening is not None,
        timeout=timeout,
        master_listen_fd=listening,
        wait_for_workers=False,
    )
    return own


def _name_of(device: torch.device) -> str:
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"


def _all_differ(names: Sequence[str]) -> bool:
    """Whether every rank has a GPU of its own, which NCCL wants; gloo does without."""
    return len(set(names)) == len(names)


def _by_kind(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)
    for kind in kinds:
        yield [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]


def _moments(flat: Tensor, shape: torch.Size) -> Moments:
    mean, spread = flat[1:].chunk(2)
    return Moments(count=flat[0], mean=mean.view(shape), spread=spread.view(shape))


@contextmanager
def _lost() -> Iterator[None]:
    """Turns what torch raises of peers into `RanksError`."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise RanksError(f"the ranks have lost each other: {error}") from error
