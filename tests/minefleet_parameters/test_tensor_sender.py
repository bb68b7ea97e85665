import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.errors import CorruptError
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.manifest import describe
from minefleet.rpc.weights.tensor_message_serializer import Piece, cut, decode
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet_parameters.store import ParameterStore
from minefleet_parameters.tensor_files import Span
from minefleet_parameters.tensor_sender import RECENT_MESSAGES, TensorSender

Weights = dict[str, NDArray[np.float32]]


class CountingStore(ParameterStore):
    """Counts what is read from the disk."""

    def __init__(self, directory: Path, pool: ThreadPoolExecutor) -> None:
        super().__init__(directory, 8, pool)
        self.reads: Counter[Span] = Counter()
        self._counting = threading.Lock()

    def read(self, number: int, span: Span, *, wait: bool = True) -> Piece:
        piece = super().read(number, span, wait=wait)
        with self._counting:
            self.reads[span] += 1
        return piece


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    with ThreadPoolExecutor(4) as pool:
        opened = CountingStore(tmp_path, pool)
        opened.recover()
        opened.open_epoch("run", 0, 0)
        yield opened


def publish(store: ParameterStore, weights: Weights, expected: int) -> list[weights_pb2.TensorEntry]:
    manifest, parts = describe(weights, iteration=expected)
    upload = store.begin(
        parameters_service_pb2.PublishHeader(run_id="run", epoch=1, expected_version=expected, manifest=manifest)
    )
    upload.start()
    for digest, part in parts.items():
        upload.write(cut(digest, part.data))
    store.commit(upload)
    upload.close()
    return list(manifest.tensors)


def draw(pieces: int) -> Weights:
    rng = np.random.default_rng(0)
    large = rng.standard_normal(pieces * PIECE_BYTES // 4, np.float32)
    return {"large": large, **{f"small.{number}": rng.standard_normal(10, np.float32) for number in range(50)}}


async def fetch(sender: TensorSender, entries: list[weights_pb2.TensorEntry], number: int = 1) -> int:
    messages = 0
    data = {entry.digest: bytearray() for entry in entries}
    async for message in sender.send(number, [(entry, 0) for entry in entries]):
        messages += 1
        pieces = decode(message.encoded) or []
        assert sum(len(piece.data) for piece in pieces) == message.size_bytes
        for piece in pieces:
            data[piece.digest] += piece.data
        # Lets the others keep up.
        await asyncio.sleep(0)
    assert {digest: len(each) for digest, each in data.items()} == {each.digest: each.size_bytes for each in entries}
    return messages


def together(count: int, fetching: Callable[[], "asyncio.Future[int]"]) -> list[int]:
    async def run() -> list[int]:
        return await asyncio.gather(*(fetching() for _ in range(count)))

    return asyncio.run(run())


def test_sender_reads_the_disk_once_for_simultaneous_fetches(store: CountingStore) -> None:
    entries = publish(store, draw(pieces=8), expected=0)
    sender = TensorSender(store)
    together(8, lambda: asyncio.ensure_future(fetch(sender, entries)))
    assert set(store.reads.values()) == {1}


def test_sender_shares_slow_reads_among_simultaneous_fetches(tmp_path: Path, store: CountingStore) -> None:
    entries = publish(store, draw(pieces=8), expected=0)
    with ThreadPoolExecutor(4) as pool:
        reopened = CountingStore(tmp_path, pool)
        reopened.recover()
        sender = TensorSender(reopened)
        with pytest.raises(BlockingIOError):
            reopened.read(1, Span(entries[0].digest, 0, PIECE_BYTES), wait=False)
        together(8, lambda: asyncio.ensure_future(fetch(sender, entries)))
        assert set(reopened.reads.values()) == {1}
        assert reopened.read(1, Span(entries[0].digest, 0, PIECE_BYTES), wait=False)


def test_sender_puts_small_tensors_into_one_message(store: CountingStore) -> None:
    entries = publish(store, draw(pieces=2), expected=0)
    assert together(1, lambda: asyncio.ensure_future(fetch(TensorSender(store), entries))) == [3]


def test_sender_forgets_tensors_some_time_after_it_read_them(store: CountingStore) -> None:
    entries = publish(store, draw(pieces=RECENT_MESSAGES + 2), expected=0)
    sender = TensorSender(store)

    async def one_after_the_other() -> None:
        await fetch(sender, entries)
        await fetch(sender, entries)

    asyncio.run(one_after_the_other())
    assert set(store.reads.values()) == {2}


def test_sender_reads_a_damaged_tensor_anew_once_it_was_renewed(tmp_path: Path, store: CountingStore) -> None:
    weights = draw(pieces=2)
    entries = publish(store, weights, expected=0)
    path = tmp_path / "tensors" / f"{entries[0].digest}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    sender = TensorSender(store)

    async def before_and_after() -> None:
        with pytest.raises(CorruptError, match=f"{entries[0].digest} is damaged"):
            await fetch(sender, entries)
        publish(store, weights, expected=1)
        await fetch(sender, entries, number=2)

    asyncio.run(before_and_after())
