"""Sends tensors: read and verified once for all fetches that are near each other.

    fetch ── runs of about 1 MiB ──▶ recent messages ──▶ page cache, or a thread ──▶ disk

Actors fetch the same tensors at the same moment, so most runs are found among the recent messages. These are bounded;
a fetch holds one; one that lags behind reads for itself. What the page cache holds, as a rule all of a version that was
just published, is read by the event loop itself: that takes less time than to hand it to a thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeAlias, TypeVar

from minefleet.rpc.message_pieces import bundled
from minefleet.rpc.weights.tensor_message_serializer import encode
from minefleet.v1 import weights_pb2
from minefleet_parameters.store import ParameterStore
from minefleet_parameters.tensor_files import Span, spans

RECENT_MESSAGES = 16
MAX_CONCURRENT_SENDS = 8
"""Tensors that the event loop reads for one message; more files than that take too long to open."""

Asked: TypeAlias = Sequence[tuple[weights_pb2.TensorEntry, int]]
"""Tensors, each with the offset from which on it is sent."""

Run: TypeAlias = tuple[Span, ...]
"""Spans that travel together, so that small tensors do not cost a message each."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Message:
    """A FetchResponse."""

    encoded: bytes
    size_bytes: int
    """Of the tensors in it."""


class TensorSender:
    """Reads tensors of a store for fetches. Used by one event loop."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self._recent: dict[Run, Message] = {}
        self._reading: dict[Run, asyncio.Task[Message]] = {}

    async def send(self, number: int, asked: Asked) -> AsyncIterator[Message]:
        """Yields tensors of a version in pieces.

        Raises:
            CorruptError: If a tensor is damaged; it counts as lacking from then on.
            NotFoundError: If the version has expired meanwhile.
        """
        for run in _runs(asked):
            message = self._at_once(number, run)
            yield await self._awaited(number, run) if message is None else message

    def _at_once(self, number: int, run: Run) -> Message | None:
        """A message that was read already, or can be without waiting for the disk."""
        message = self._recent.pop(run, None)
        if message is None and len(run) <= MAX_CONCURRENT_SENDS and run not in self._reading:
            with suppress(OSError):  # Whatever it is, a thread meets it too.
                message = self._read(number, run, wait=False)
        return None if message is None else self._keep(run, message)

    async def _awaited(self, number: int, run: Run) -> Message:
        """A message that a thread reads once for all callers that wait for it, and for the next one if they hang up."""
        reading = self._reading.get(run)
        if reading is None:
            reading = self._reading[run] = begin(self._read, number, run, wait=True)
            reading.add_done_callback(lambda _: self._reading.pop(run))
        return self._keep(run, await asyncio.shield(reading))

    def _read(self, number: int, run: Run, *, wait: bool) -> Message:
        encoded = encode([self._store.read(number, span, wait=wait) for span in run])
        return Message(encoded, sum(span.size_bytes for span in run))

    def _keep(self, run: Run, message: Message) -> Message:
        self._recent[run] = message
        if len(self._recent) > RECENT_MESSAGES:
            del self._recent[next(iter(self._recent))]
        return message


def begin(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> asyncio.Task[Result]:
    """Runs work in a thread, as a task whose failure may go unread: its starter may have ended."""
    task = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def _runs(asked: Asked) -> Iterator[Run]:
    cut = (span for entry, start in asked for span in spans(entry.digest, start, entry.size_bytes))
    return map(tuple, bundled((span, span.size_bytes) for span in cut))
