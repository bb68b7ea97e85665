"""Many simulated actors in one process, for `benchmarks/replay_fleet.py`.

    python -m harness.fleet_actors RUN_DIR ADDRESS PREFIX PID ...

Each actor has one stream and one connection, and one Append at a time under way, as a real one has. It appends on
schedule, however long the answers take (an open loop), but does not make up for fragments that it could not send in
time: a real one would pause. After each fragment it reserves its next chunk. The payloads are packed beforehand and
the same for all, so that this process costs little.

Reads questions from standard input: {"actors", "period_s", "seconds", "length", "compression"}; with `period_s` 0 each
actor appends one fragment. Answers with a line of figures, with the processor time that the named processes took.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from harness.fragments import fragment_of
from harness.processes import cpu_s
from harness.replaying import RUN_ID
from minefleet.core.fragment import Fragment
from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.rpc.codec import encode
from minefleet.rpc.message_pieces import bundled, pieces
from minefleet.rpc.replay_types import Packed
from minefleet.runs.run_yaml import Run, read_run
from minefleet.v1 import fragment_pb2, replay_service_pb2

OPTIONS = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""Channels of one process share a connection otherwise."""

TIMEOUT_S = 60.0
RETRY_S = 0.05
REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL)
"""Status codes of an overloaded replay. grpc.aio turns a refusal in the middle of an upload into INTERNAL."""


def main() -> None:
    directory, address, prefix, *pids = sys.argv[1:]
    asyncio.run(answer_all(Crowd(read_run(Path(directory)), address, prefix, [int(pid) for pid in pids])))


async def answer_all(crowd: "Crowd") -> None:
    """Answers until standard input ends."""
    while question := await asyncio.to_thread(sys.stdin.readline):
        figures = await crowd.answer(**json.loads(question))
        print(json.dumps(figures), flush=True)


@dataclass(slots=True)
class Actor:
    """One stream."""

    stream: str
    channel: grpc.aio.Channel
    sequence: int = 0


@dataclass(slots=True)
class Tally:
    """Events between two moments on the clock."""

    began_s: float
    ends_s: float
    latencies_s: list[float] = field(default_factory=list)
    """Of fragments that were due then: from due to acked."""
    acked: int = 0
    late: int = 0
    """Acked after the actor's next fragment was due."""
    refused: int = 0


class Crowd:
    """The actors."""

    def __init__(self, run: Run, address: str, prefix: str, watched: Sequence[int]) -> None:
        self._run = run
        self._address = address
        self._prefix = prefix
        self._watched = (os.getpid(), *watched)
        self._actors: list[Actor] = []

    async def answer(
        self, *, actors: int, period_s: float, seconds: float, length: int, compression: float
    ) -> dict[str, object]:
        """Lets so many actors act."""
        self._connect(actors)
        parcel = Parcel(pack(self._run, length, compression))
        now = time.monotonic()
        tally = Tally(now + period_s, now + period_s + seconds)
        meter = asyncio.create_task(self._measure(tally))
        await asyncio.gather(*(self._act(actor, parcel, period_s, tally) for actor in self._actors[:actors]))
        return {
            "latencies_s": tally.latencies_s,
            "acked": tally.acked,
            "late": tally.late,
            "refused": tally.refused,
            "payload_bytes": parcel.header.payload_bytes,
            "raw_bytes": parcel.header.raw_bytes,
            "cpu_s": await meter,
        }

    def _connect(self, actors: int) -> None:
        for number in range(len(self._actors), actors):
            channel = grpc.aio.insecure_channel(self._address, options=OPTIONS)
            self._actors.append(Actor(f"{self._prefix}-{number}", channel))

    async def _measure(self, tally: Tally) -> list[float]:
        """Processor seconds of this process and of those watched between the two moments."""
        await asyncio.sleep(tally.began_s - time.monotonic())
        before = [cpu_s(pid) for pid in self._watched]
        await asyncio.sleep(tally.ends_s - time.monotonic())
        return [cpu_s(pid) - began for pid, began in zip(self._watched, before, strict=True)]

    async def _act(self, actor: Actor, parcel: "Parcel", period_s: float, tally: Tally) -> None:
        due_s = time.monotonic() + random.uniform(0, period_s)
        while True:
            await asyncio.sleep(due_s - time.monotonic())
            refused = await self._append(actor, parcel)
            acked_s = time.monotonic()
            if tally.began_s <= acked_s < tally.ends_s:
                tally.acked += 1
                tally.refused += refused
            if tally.began_s <= due_s:
                tally.latencies_s.append(acked_s - due_s)
                tally.late += acked_s - due_s > period_s
            await self._reserve(actor)
            due_s = max(due_s + period_s, acked_s)
            if due_s >= tally.ends_s or period_s == 0:
                return

    async def _append(self, actor: Actor, parcel: "Parcel") -> int:
        """Appends the actor's next fragment; returns how often it was refused before."""
        call: grpc.aio.StreamUnaryMultiCallable[bytes, replay_service_pb2.AppendResponse] = actor.channel.stream_unary(
            "/minefleet.v1.ReplayService/Append", response_deserializer=replay_service_pb2.AppendResponse.FromString
        )
        messages, refused = list(parcel.messages(actor.stream, actor.sequence)), 0
        while True:
            try:
                await call(iter(messages), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                if error.code() not in REFUSALS:
                    raise
                refused += 1
                await asyncio.sleep(RETRY_S)
            else:
                actor.sequence += 1
                return refused

    async def _reserve(self, actor: Actor) -> None:
        request = replay_service_pb2.ReserveRequest(
            run_id=RUN_ID, policy_version=1, chunks=[fragment_pb2.ChunkName(stream=actor.stream, chunk=actor.sequence)]
        )
        call = actor.channel.unary_unary(
            "/minefleet.v1.ReplayService/Reserve",
            request_serializer=replay_service_pb2.ReserveRequest.SerializeToString,
            response_deserializer=replay_service_pb2.ReserveResponse.FromString,
        )
        try:
            await call(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in REFUSALS:
                raise


class Parcel:
    """A fragment that only lacks its name, as messages of an Append."""

    def __init__(self, packed: Packed) -> None:
        self.header, payload = packed
        parts = ((replay_service_pb2.AppendPart(payload=piece), len(piece)) for piece in pieces(payload))
        self._first, *self._rest = (
            replay_service_pb2.AppendRequest(parts=message).SerializeToString() for message in bundled(parts)
        )

    def messages(self, stream: str, sequence: int) -> Iterator[bytes]:
        """The messages of a fragment of this name. Serialised messages that are joined are one with all their parts."""
        self.header.name.stream, self.header.name.sequence = stream, sequence
        head = replay_service_pb2.AppendRequest(parts=[replay_service_pb2.AppendPart(header=self.header)])
        yield head.SerializeToString() + self._first
        yield from self._rest


def pack(run: Run, length: int, compression: float) -> Packed:
    """A fragment whose frames pack so many times: that share of each is random, the rest is black."""
    rng = np.random.default_rng(0)
    frames = np.zeros((length + 1, *run.schema.obs.shape), np.uint8)
    flat = frames.reshape(length + 1, -1)
    noise = round(flat.shape[1] / compression)
    flat[:, :noise] = rng.integers(0, 256, (length + 1, noise), np.uint8)
    arrays = fragment_of(frames[:-1], frames[-1], rng.integers(0, 17, length), rng)
    fingerprint = run.schema.fingerprint
    fragment = Fragment(**arrays, recurrent_state={})
    header = fragment_pb2.FragmentHeader(run_id=RUN_ID, schema_fingerprint=fingerprint, closes_chunk=True)
    return encode(header, fragment)


if __name__ == "__main__":
    main()
