"""The client of replay: actors reserve and append, the learner leases, reads and acks.

Every call has a deadline and is repeated by name until replay answers, so a caller sees a slow replay, never a lost or
doubled call. The channel is shared by threads; `position` is replaced whole, never changed in place.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from minefleet.rpc.channel import CALL_TIMEOUT_S
from minefleet.rpc.durations import duration
from minefleet.rpc.fragment_drop_record import DropRecord
from minefleet.rpc.message_pieces import bundled, pieces
from minefleet.rpc.payload_message_serializer import append_call, message_of, read_call
from minefleet.rpc.replay_types import (
    NO_POSITION,
    ORDERS,
    OUTCOMES,
    AppendResult,
    Lease,
    Name,
    Order,
    Packed,
    Position,
    Reservation,
)
from minefleet.rpc.resumable_lease_read import FragmentReader
from minefleet.rpc.service_client import ServiceClient
from minefleet.v1 import episode_pb2, fragment_pb2, replay_service_pb2, replay_service_pb2_grpc

logger = logging.getLogger(__name__)

READ_TIMEOUT_S = 300.0
"""Deadline of one Read; a reader that is slower resumes where it stood."""

SLOWEST_BYTES_PER_S = 1_000_000
"""An upload that is slower misses its deadline."""


_OUTCOMES = {number: word for word, number in OUTCOMES.items()}


class ReplayClient(ServiceClient):
    """A connection to one replay service.

    Args:
        address: `host:port`.
        position: Goes along with every call; assign a new one whenever it changes.
        options: As for `ServiceClient`.
    """

    def __init__(self, address: str, *, position: Position = NO_POSITION, **options: Any) -> None:
        super().__init__("replay", address, **options)
        self.position = position
        self._stub = replay_service_pb2_grpc.ReplayServiceStub(self._channel)
        self._append_call = append_call(self._channel)
        self._read_call = read_call(self._channel)

    def __enter__(self) -> "ReplayClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reserve(
        self,
        policy_version: int,
        chunks: Sequence[Name],
        streams: Sequence[replay_service_pb2.StreamState] = (),
        returned: Sequence[Name] = (),
    ) -> Reservation:
        """Asks whether these chunks may be made with these weights. Asking again renews a grant.

        Args:
            policy_version: Of the weights.
            chunks: By stream and number.
            streams: What is to be said of streams.
            returned: Chunks that shall not be made now after all, by stream and number.
        """
        request = replay_service_pb2.ReserveRequest(
            run_id=self.position.run_id,
            policy_version=policy_version,
            chunks=[fragment_pb2.ChunkName(stream=stream, chunk=chunk) for stream, chunk in chunks],
            streams=streams,
            returned=[fragment_pb2.ChunkName(stream=stream, chunk=chunk) for stream, chunk in returned],
        )
        response = self._call(lambda: self._stub.Reserve(request, timeout=CALL_TIMEOUT_S))
        return Reservation.from_proto(response)

    def append(
        self,
        fragments: Sequence[Packed] = (),
        *,
        episodes: Sequence[episode_pb2.EpisodeRecord] = (),
        progress: replay_service_pb2.ActorProgress | None = None,
    ) -> AppendResult:
        """Stores fragments, episode records and the actor's progress. Several fragments in one call cost less.

        Raises:
            ConflictError: If a fragment's name is known with other bytes.
            RejectedError: If a header is malformed, or a payload does not match it.
        """
        sent_bytes = sum(len(payload) for _, payload in fragments)
        timeout_s = CALL_TIMEOUT_S + sent_bytes / SLOWEST_BYTES_PER_S
        response = self._call(
            lambda: self._append_call(_append_messages(fragments, episodes, progress), timeout=timeout_s)
        )
        outcomes = [_OUTCOMES[outcome] for outcome in response.outcomes]
        return AppendResult(outcomes=outcomes, newest_version=response.newest_version)

    def lease(
        self,
        number: int,
        *,
        steps: int,
        use_version: int,
        wait_s: float,
        order: Order = "least_used",
        settings: str = "",
    ) -> Lease:
        """Leases whole chunks until their steps reach `steps`; waits up to `wait_s` until there are enough.

        Args:
            number: Chosen by the caller, unique in its epoch; asking again with it returns the same chunks.
            steps: Wanted, >= 1.
            use_version: The version that the learner will have published when it uses the chunks.
            wait_s: Longest wait, seconds.
            order: Which chunks to prefer.
            settings: By which replay works from this lease on, JSON; empty for those of the configuration.

        Raises:
            FencedError: If a newer epoch has taken over.
        """
        request = replay_service_pb2.LeaseRequest(
            learner=self._learner(),
            lease=number,
            steps=steps,
            use_version=use_version,
            wait=duration(wait_s),
            order=ORDERS[order],
            settings=settings,
        )
        response = self._call(lambda: self._stub.Lease(request, timeout=wait_s + CALL_TIMEOUT_S))
        return Lease.from_proto(number, response)

    def read(
        self,
        number: int,
        chunks: Iterable[replay_service_pb2.LeasedChunk] = (),
        *,
        missing: Callable[[Name], None] = lambda _: None,
    ) -> Iterator[Packed]:
        """Yields the fragments of an open lease, chunk by chunk in the order of the lease; resumes by itself.

        Args:
            number: The lease.
            chunks: Which of its chunks; none means all.
            missing: Called with the name of each fragment that was found corrupt and is not yielded.

        Raises:
            NotFoundError: If no such lease is open.
        """
        names = [chunk.name for chunk in chunks]
        request = replay_service_pb2.ReadRequest(learner=self._learner(), lease=number, chunks=names)
        reading = FragmentReader(lambda: self._read_call(request, timeout=READ_TIMEOUT_S))
        try:
            while (item := self._call(reading.advance)) is not None:
                if isinstance(item, fragment_pb2.FragmentName):
                    logger.warning("fragment %s/%d is corrupt and was left out", item.stream, item.sequence)
                    missing((item.stream, item.sequence))
                else:
                    yield item
        finally:
            reading.close()

    def ack(self, number: int) -> int:
        """Acks a lease as trained. Returns the environment steps that actors have reported.

        Raises:
            NotFoundError: If the lease was never open in this epoch, or was released.
        """
        request = replay_service_pb2.AckRequest(learner=self._learner(), lease=number)
        return self._call(lambda: self._stub.Ack(request, timeout=CALL_TIMEOUT_S)).env_steps

    def release(self, number: int) -> None:
        """Gives a lease back unused.

        Raises:
            NotFoundError: If the lease was never open in this epoch, or was acked.
        """
        request = replay_service_pb2.ReleaseRequest(learner=self._learner(), lease=number)
        self._call(lambda: self._stub.Release(request, timeout=CALL_TIMEOUT_S))

    def read_episodes(self, cursor: int, limit: int) -> replay_service_pb2.ReadEpisodesResponse:
        """Returns finished episodes from a cursor on, in the order in which replay stored them."""
        request = replay_service_pb2.ReadEpisodesRequest(learner=self._learner(), cursor=cursor, limit=limit)
        return self._call(lambda: self._stub.ReadEpisodes(request, timeout=CALL_TIMEOUT_S))

    def why_dropped(self, stream: str = "", limit: int = 100) -> list[DropRecord]:
        """Returns why fragments of a stream, or of all, left; the latest first, as far back as replay remembers.

        Raises:
            NotFoundError: If replay does not know the stream.
        """
        request = replay_service_pb2.WhyDroppedRequest(stream=stream, limit=limit)
        response = self._call(lambda: self._stub.WhyDropped(request, timeout=CALL_TIMEOUT_S))
        return [DropRecord.from_proto(departure) for departure in response.departures]

    def _learner(self) -> replay_service_pb2.Learner:
        position = self.position
        return replay_service_pb2.Learner(
            run_id=position.run_id,
            epoch=position.epoch,
            version=position.version,
            resumed_version=position.resumed_version,
            first_version=position.first_version,
        )


def _append_messages(
    fragments: Sequence[Packed],
    episodes: Sequence[episode_pb2.EpisodeRecord],
    progress: replay_service_pb2.ActorProgress | None,
) -> Iterator[replay_service_pb2.AppendRequest | bytes]:
    for parts in bundled(_append_parts(fragments, episodes, progress)):
        yield message_of(replay_service_pb2.AppendRequest, parts)


def _append_parts(
    fragments: Sequence[Packed],
    episodes: Sequence[episode_pb2.EpisodeRecord],
    progress: replay_service_pb2.ActorProgress | None,
) -> Iterator[tuple[dict[str, Any], int]]:
    """The parts of an Append, by their field, with their bytes. Records come first, to be stored with a fragment."""
    if progress is not None:
        yield {"progress": progress}, progress.ByteSize()
    for episode in episodes:
        yield {"episode": episode}, episode.ByteSize()
    for header, payload in fragments:
        yield {"header": header}, header.ByteSize()
        for piece in pieces(payload):
            yield {"payload": piece}, len(piece)
