"""Sends tensors: read and verified once for all fetches that are near each other.

    fetch ── runs of about 1 MiB ──▶ recent messages ── a thread ──▶ disk

Actors fetch the same tensors at the same moment, so most runs are found among the recent messages. These are bounded;
a fetch holds one and reads one ahead; one that lags behind reads for itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeAlias, TypeVar

from minefleet.rpc import bundled
from minefleet.v1 import weights_pb2
from minefleet.weights.pieces import encode
from minefleet_parameters.store import ParameterStore
from minefleet_parameters.tensors import Span, spans

RECENT_MESSAGES = 16

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
        self._recent: dict[Run, asyncio.Task[Message]] = {}

    async def send(self, number: int, asked: Asked) -> AsyncIterator[Message]:
        """Yields tensors of a version in pieces.

        Raises:
            CorruptError: If a tensor is damaged; it counts as lacking from then on.
            NotFoundError: If the version has expired meanwhile.
        """
        runs = _runs(asked)
        first = next(runs, None)
        if first is None:
            return
        ahead = self._reading(number, first)
        for run in runs:
            reading, ahead = ahead, self._reading(number, run)
            yield await _result(reading)
        yield await _result(ahead)

    def _reading(self, number: int, run: Run) -> asyncio.Task[Message]:
        reading = self._recent.pop(run, None)
        if reading is None or (reading.done() and reading.exception()):
            reading = begin(self._read, number, run)
        self._recent[run] = reading
        if len(self._recent) > RECENT_MESSAGES:
            del self._recent[next(iter(self._recent))]
        return reading

    def _read(self, number: int, run: Run) -> Message:
        encoded = encode(self._store.read(number, span) for span in run)
        return Message(encoded, sum(span.size_bytes for span in run))


def begin(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> asyncio.Task[Result]:
    """Runs work in a thread, as a task whose failure nobody needs to hear: who began it may have ended."""
    task = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _result(reading: asyncio.Task[Message]) -> Message:
    """What was read, at once if it is there; a fetch that ends leaves the reading to the others."""
    return reading.result() if reading.done() else await asyncio.shield(reading)


def _runs(asked: Asked) -> Iterator[Run]:
    cut = (span for entry, start in asked for span in spans(entry.digest, start, entry.size_bytes))
    return map(tuple, bundled((span, span.size_bytes) for span in cut))
