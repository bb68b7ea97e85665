"""Calls to replay wait a moment for company, but for nothing that the loop waits for."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minefleet.core.fragment import Fragment
from minefleet.rpc.codec import encode
from minefleet.v1 import fragment_pb2, replay_service_pb2
from minefleet_actor.replay_io import permits
from minefleet_actor.replay_io import uploader as uploader_module
from minefleet_actor.replay_io.permits import Chunk, RolloutPermits
from minefleet_actor.replay_io.uploader import FragmentUploader

FOR_EVER_S = 600.0
SOON_S = 60.0
"""Longest wait for what must come: a test fails after it."""


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for company last for ever, so that the time ends none of them."""
    for module in (uploader_module, permits):
        monkeypatch.setattr(module, "LINGER_S", FOR_EVER_S)


class Replay:
    """Grants all, or nothing, and tells what it is asked."""

    position = SimpleNamespace(run_id="run")

    def __init__(self) -> None:
        self.appended: Queue[list[int]] = Queue()
        self.reserved: Queue[list[Chunk]] = Queue()
        self.grants = True

    def append(self, packed: Any = (), **_: object) -> None:
        self.appended.put([header.name.sequence for header, _ in packed])

    def reserve(self, policy_version: int, chunks: list[Chunk], streams: object, returned: object) -> Any:
        self.reserved.put(chunks)
        return SimpleNamespace(
            granted=[self.grants] * len(chunks),
            too_slow=[False] * len(chunks),
            ahead=[False] * len(chunks),
            tasks=[],
            closing=None,
            longest_chunk_s=math.inf,
            retry_after_s=FOR_EVER_S,
            newest_version=1,
            wants_newer_weights=False,
        )


def queued(sequence: int) -> tuple[fragment_pb2.FragmentHeader, Fragment]:
    values, flags = np.zeros(1, np.float32), np.zeros(1, np.bool_)
    fragment = Fragment(
        obs=np.zeros((1, 2), np.float32),
        action=np.zeros(1, np.int64),
        reward=values,
        terminated=~flags,
        truncated=flags,
        first=flags,
        crash=flags,
        behaviour_logp=values,
        behaviour_value=values,
        next_value=values,
        policy_version=np.ones(1, np.uint32),
        cut_index=np.zeros(0, np.int32),
        cut_obs=np.zeros((0, 2), np.float32),
        recurrent_state={},
    )
    return fragment_pb2.FragmentHeader(name=fragment_pb2.FragmentName(stream="s", sequence=sequence)), fragment


def uploader_of(replay: Replay, capacity: int, sent: Callable[[], None] = lambda: None) -> FragmentUploader:
    return FragmentUploader(
        replay,  # type: ignore[arg-type]
        capacity=capacity,
        schema_fingerprint="",
        compression="none",
        state_dtype="float32",
        progress=replay_service_pb2.ActorProgress,
        sent=sent,
    )


def grants_of(replay: Replay, granted: Callable[[], None] = lambda: None) -> RolloutPermits:
    return RolloutPermits(
        replay,  # type: ignore[arg-type]
        version=lambda: 1,
        granted=granted,
        renew_s=FOR_EVER_S,
        max_staleness=1,
    )


@contextmanager
def running(worker: FragmentUploader | RolloutPermits) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.close()
        thread.join(SOON_S)
        assert not thread.is_alive()


def test_uploader_sends_fragments_together_once_the_queue_is_half_full() -> None:
    replay = Replay()
    uploader = uploader_of(replay, capacity=6)
    with running(uploader):
        for sequence in range(3):
            uploader.send(*queued(sequence))
        assert replay.appended.get(timeout=SOON_S) == [0, 1, 2]


def test_uploader_that_is_closed_sends_without_waiting_for_more_fragments() -> None:
    replay = Replay()
    uploader = uploader_of(replay, capacity=6)
    with running(uploader):
        uploader.send(*queued(0))
        uploader.close()
        assert replay.appended.get(timeout=SOON_S) == [0]


def test_uploader_sends_a_single_fragment_by_itself_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_module, "LINGER_S", 0.01)
    replay = Replay()
    uploader = uploader_of(replay, capacity=6)
    with running(uploader):
        uploader.send(*queued(0))
        assert replay.appended.get(timeout=SOON_S) == [0]


def test_uploader_flush_sends_without_waiting_for_more_fragments() -> None:
    replay = Replay()
    uploader = uploader_of(replay, capacity=6)
    uploader.send(*queued(0))
    uploader.flush()
    assert replay.appended.get_nowait() == [0]


@pytest.mark.parametrize("asked", [False, True])
def test_uploader_wakes_the_loop_for_room_only_where_it_found_none(asked: bool) -> None:
    replay, told = Replay(), list[bool]()
    uploader = uploader_of(replay, capacity=1, sent=lambda: told.append(True))
    uploader.send(*queued(0))
    if asked:
        assert not uploader.has_room()
    uploader.flush()
    assert told == [True] * asked
    assert uploader.has_room()
    uploader.send(*queued(1))
    uploader.flush()
    assert told == [True] * asked


def test_permits_are_requested_together_until_the_loop_waits_for_one() -> None:
    replay = Replay()
    asking = grants_of(replay)
    asking.request(("s", 9))
    with running(asking):
        # From now on the thread has asked once, and waits for a wish.
        assert replay.reserved.get(timeout=SOON_S) == [("s", 9)]
        for number in range(3):
            asking.request(("s", number))
        assert not asking.is_granted(("s", 1))
        assert replay.reserved.get(timeout=SOON_S) == [("s", 0), ("s", 1), ("s", 2)]


@pytest.mark.parametrize("missed", [False, True])
def test_permits_wake_the_loop_for_a_grant_only_where_it_missed_one(missed: bool) -> None:
    replay, told = Replay(), list[bool]()
    asking = grants_of(replay, granted=lambda: told.append(True))
    asking.request(("s", 0))
    if missed:
        assert not asking.is_granted(("s", 0))
    asking.reserve()
    assert told == [True] * missed
    assert asking.is_granted(("s", 0))
    asking.request(("s", 1))
    asking.reserve()
    assert told == [True] * missed


def test_permits_refused_once_wake_the_loop_when_they_are_granted() -> None:
    replay, told = Replay(), list[bool]()
    replay.grants = False
    asking = grants_of(replay, granted=lambda: told.append(True))
    asking.request(("s", 0))
    assert not asking.is_granted(("s", 0))
    asking.reserve()
    assert not told
    replay.grants = True
    asking.reserve()
    assert told


def test_uploader_packs_the_next_call_while_a_full_one_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Queue[int]()

    def recording(header: fragment_pb2.FragmentHeader, *arguments: Any, **options: Any) -> Any:
        encoded.put(header.name.sequence)
        return encode(header, *arguments, **options)

    class Slow(Replay):
        def append(self, packed: Any = (), **options: object) -> None:
            super().append(packed, **options)
            awaited = [header.name.sequence + 1 for header, _ in packed if header.name.sequence < 2]
            while awaited and encoded.get(timeout=SOON_S) != awaited[0]:
                pass

    monkeypatch.setattr(uploader_module, "CALL_BYTES", 1)
    monkeypatch.setattr(uploader_module, "encode", recording)
    replay = Slow()
    uploader = uploader_of(replay, capacity=100)
    for sequence in range(3):
        uploader.send(*queued(sequence))
    uploader.flush()
    assert [replay.appended.get_nowait() for _ in range(3)] == [[0], [1], [2]]
