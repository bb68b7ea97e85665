"""The servicer: checks and translates, nothing else. What goes wrong is raised, and the runtime makes it a status."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from minefleet.core.errors import DeadlineError, FleetError, OverloadedError, RejectedError
from minefleet.rpc.durations import duration, in_seconds
from minefleet.rpc.message_pieces import bundled
from minefleet.rpc.payload_message_serializer import SERVICE, message_of, transfer_handlers
from minefleet.rpc.replay_types import ORDERS, OUTCOMES, Order, Outcome, Position
from minefleet.v1 import fragment_pb2, replay_service_pb2, replay_service_pb2_grpc
from minefleet_replay.append_receiver import MAX_NUMBER, check_name, receive
from minefleet_replay.engine.latest_drops import why_dropped
from minefleet_replay.engine.lease import LeaseRequest
from minefleet_replay.engine.metrics import ReplayMetrics, refusal
from minefleet_replay.engine.replay import Replay
from minefleet_replay.engine.verified_fragment_reads import grouped
from minefleet_replay.state.chunk import Chunk
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_forecast import ForecastRow
from minefleet_replay.state.lease_table import Ending
from minefleet_replay.state.limits import Limits
from minefleet_replay.state.stream_pace import StreamState

HANDLERS = 32
"""Threads that serve calls. A waiting Lease and an upload in flight hold one each."""
MAX_UPLOADS = 24
"""Uploads that may be under way at once."""
MAX_WAITS = 4
"""Leases that may be waited for at once: a learner has one or two."""
UPLOAD_RETRY_S = 0.05
WAIT_RETRY_S = 0.5
MAX_CHUNKS_ASKED = 10_000
MAX_WAIT_S = 600.0
MAX_EPISODES_READ = 10_000
MAX_DEPARTURES_READ = 10_000

_ORDERS: dict[replay_service_pb2.LeaseOrder.ValueType, Order] = {
    replay_service_pb2.LEASE_ORDER_UNSPECIFIED: "least_used",
    **{number: word for word, number in ORDERS.items()},
}


class ReplayServicer(replay_service_pb2_grpc.ReplayServiceServicer):
    """Serves one `Replay`."""

    def __init__(self, replay: Replay, limits: Limits, metrics: ReplayMetrics) -> None:
        self._replay = replay
        self._limits = limits
        self._metrics = metrics
        self._uploads = threading.BoundedSemaphore(MAX_UPLOADS)
        self._waits = threading.BoundedSemaphore(MAX_WAITS)

    def Reserve(  # noqa: N802  # Methods are named by the proto.
        self, request: replay_service_pb2.ReserveRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.ReserveResponse:
        """Answers at once."""
        with self._counted():
            names = _chunk_names(request.chunks)
            self._replay.bind(request.run_id)
            returned = _chunk_names(request.returned)
            answer = self._replay.reserve(request.policy_version, names, _streams(request.streams), returned)
        for grant in answer.grants:
            self._metrics.granted.labels(str(grant.granted).lower()).inc()
        return replay_service_pb2.ReserveResponse(
            granted=[grant.granted for grant in answer.grants],
            too_slow=[grant.too_slow for grant in answer.grants],
            ahead=[grant.ahead for grant in answer.grants],
            tasks=[grant.task for grant in answer.grants],
            retry_after=duration(answer.retry_after_s),
            newest_version=answer.newest_version,
            wants_newer_weights=answer.wants_newer_weights,
            closing=_closing(answer.closing),
            longest_chunk=duration(answer.longest_chunk_s) if math.isfinite(answer.longest_chunk_s) else None,
        )

    def Append(  # noqa: N802
        self, request_iterator: Iterator[replay_service_pb2.AppendRequest | memoryview], context: grpc.ServicerContext
    ) -> replay_service_pb2.AppendResponse:
        """Stores each fragment once it has come whole; a caller that goes away leaves no part of one."""
        outcomes: list[Outcome] = []
        with self._counted(), _one_of(self._uploads, f"{MAX_UPLOADS} uploads are under way", UPLOAD_RETRY_S):
            for upload in receive(request_iterator, self._admit_header):
                if not context.is_active():
                    raise DeadlineError("the caller went away before its upload was whole")
                outcome = self._replay.append(upload)
                if outcome is not None:
                    outcomes.append(outcome)
            newest_version = self._replay.sync_appends()
        return replay_service_pb2.AppendResponse(
            outcomes=[OUTCOMES[outcome] for outcome in outcomes], newest_version=newest_version
        )

    def Lease(  # noqa: N802
        self, request: replay_service_pb2.LeaseRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.LeaseResponse:
        """Waits for enough chunks."""
        with self._counted():
            learner, wanted = self._learner(request.learner), self._wanted(request)
            context.add_callback(self._replay.wake)
            wait_s = min(in_seconds(request.wait), MAX_WAIT_S)
            with _one_of(self._waits, f"{MAX_WAITS} leases are waited for", WAIT_RETRY_S):
                leased = self._replay.lease(learner, wanted, wait_s, context.is_active)
        progress, (tasks, starved, closing) = self._replay.progress(), self._replay.shares()
        return replay_service_pb2.LeaseResponse(
            chunks=[_leased_chunk(chunk) for chunk in leased],
            env_steps=progress.env_steps,
            env_failures=progress.env_failures,
            tasks=[account.to_proto() for account in tasks],
            starved_streams=[account.to_proto() for account in starved],
            window=None if closing is None else duration(closing.window_s),
            interval=None if closing is None else duration(closing.interval_s),
        )

    def Read(  # type: ignore[override]  # noqa: N802  # Encoded messages go out as they are.
        self, request: replay_service_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[replay_service_pb2.ReadResponse | bytes]:
        """Streams from the store; a slow reader holds nothing but its thread."""
        with self._counted():
            names = _chunk_names(request.chunks)
            learner = self._learner(request.learner)
            for parts in bundled(self._read(self._replay.chunks_in_lease(learner, request.lease, names))):
                # It may have been frozen since the last message, and another may have taken over.
                self._replay.refuse_fenced(learner)
                yield message_of(replay_service_pb2.ReadResponse, parts)

    def Ack(  # noqa: N802
        self, request: replay_service_pb2.AckRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.AckResponse:
        """Spends a lease."""
        self._close(request.learner, request.lease, "acked")
        return replay_service_pb2.AckResponse(env_steps=self._replay.progress().env_steps)

    def Release(  # noqa: N802
        self, request: replay_service_pb2.ReleaseRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.ReleaseResponse:
        """Refunds a lease."""
        self._close(request.learner, request.lease, "released")
        return replay_service_pb2.ReleaseResponse()

    def ReadEpisodes(  # noqa: N802
        self, request: replay_service_pb2.ReadEpisodesRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.ReadEpisodesResponse:
        """Answers at once."""
        with self._counted():
            learner = self._learner(request.learner)
            if not 1 <= request.limit <= MAX_EPISODES_READ:
                raise RejectedError(f"limit must lie in [1, {MAX_EPISODES_READ}], got {request.limit}")
            page = self._replay.read_episodes(learner, request.cursor, request.limit)
        return replay_service_pb2.ReadEpisodesResponse(episodes=page.records, next_cursor=page.next_cursor)

    def WhyDropped(  # noqa: N802
        self, request: replay_service_pb2.WhyDroppedRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.WhyDroppedResponse:
        """Reads the store beside the other calls."""
        with self._counted():
            if not 1 <= request.limit <= MAX_DEPARTURES_READ:
                raise RejectedError(f"limit must lie in [1, {MAX_DEPARTURES_READ}], got {request.limit}")
            departures = why_dropped(self._replay.transactions.store, request.stream, request.limit)
        return replay_service_pb2.WhyDroppedResponse(departures=[departure.to_proto() for departure in departures])

    def CountSteps(  # noqa: N802
        self, request: replay_service_pb2.CountStepsRequest, context: grpc.ServicerContext
    ) -> replay_service_pb2.CountStepsResponse:
        """Answers at once."""
        with self._counted():
            if len(request.streams) > MAX_CHUNKS_ASKED:
                raise RejectedError(f"a call names at most {MAX_CHUNKS_ASKED} streams, got {len(request.streams)}")
            for stream in request.streams:
                check_name(stream, 0)
            return replay_service_pb2.CountStepsResponse(streams=self._replay.count_steps(request.streams))

    def _admit_header(self, header: fragment_pb2.FragmentHeader) -> None:
        self._replay.bind(header.run_id, header.schema_fingerprint)

    def _learner(self, learner: replay_service_pb2.Learner) -> Position:
        numbers = (learner.epoch, learner.version, learner.resumed_version, learner.first_version)
        if learner.epoch < 1 or max(numbers) > MAX_NUMBER:
            raise RejectedError(f"a learner has an epoch >= 1 and numbers <= {MAX_NUMBER}, got {numbers}")
        self._replay.bind(learner.run_id)
        return Position(
            run_id=learner.run_id,
            epoch=learner.epoch,
            version=learner.version,
            resumed_version=learner.resumed_version,
            first_version=learner.first_version,
        )

    def _wanted(self, request: replay_service_pb2.LeaseRequest) -> LeaseRequest:
        if not 1 <= request.steps <= self._limits.max_steps:
            raise RejectedError(
                f"steps must lie in [1, {self._limits.max_steps}], which is what max_chunks lets replay keep, got "
                f"{request.steps}"
            )
        if request.order not in _ORDERS or request.lease > MAX_NUMBER:
            raise RejectedError(f"unknown order {request.order}, or lease {request.lease} > {MAX_NUMBER}")
        return LeaseRequest(
            number=request.lease,
            steps=request.steps,
            use_version=request.use_version,
            order=_ORDERS[request.order],
            settings=request.settings,
        )

    def _read(self, leased: Sequence[Chunk]) -> Iterator[tuple[dict[str, Any], int]]:
        """The parts of a Read, by their field, with their bytes."""
        for items in grouped(leased):
            for item, stored in zip(items, self._replay.fetch(items), strict=True):
                if stored is None:
                    name = fragment_pb2.FragmentName(stream=item.chunk.stream, sequence=item.fragment.sequence)
                    yield {"missing": name}, name.ByteSize()
                    continue
                header, pieces = stored
                yield {"header": header}, header.ByteSize()
                for piece in pieces:
                    yield {"payload": piece}, len(piece)

    def _close(self, learner: replay_service_pb2.Learner, lease: int, ending: Ending) -> None:
        with self._counted():
            self._replay.close_lease(self._learner(learner), lease, ending)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except FleetError as error:
            self._metrics.refused.labels(refusal(type(error))).inc()
            raise


def add_to_server(servicer: ReplayServicer, server: grpc.Server) -> None:
    """Adds the service to a server; pieces of payloads bypass protobuf."""
    replay_service_pb2_grpc.add_ReplayServiceServicer_to_server(servicer, server)
    server.add_registered_method_handlers(SERVICE, transfer_handlers(servicer.Append, servicer.Read))


@contextmanager
def _one_of(few: threading.BoundedSemaphore, refusal: str, retry_s: float) -> Iterator[None]:
    """Keeps handlers free for all other calls: they must not stand in line behind any number of long ones."""
    if not few.acquire(blocking=False):
        raise OverloadedError(refusal, retry_s)
    try:
        yield
    finally:
        few.release()


def _chunk_names(chunks: Sequence[fragment_pb2.ChunkName]) -> list[ChunkName]:
    if len(chunks) > MAX_CHUNKS_ASKED:
        raise RejectedError(f"a call names at most {MAX_CHUNKS_ASKED} chunks, got {len(chunks)}")
    for chunk in chunks:
        check_name(chunk.stream, chunk.chunk)
    return [ChunkName(chunk.stream, chunk.chunk) for chunk in chunks]


def _streams(states: Sequence[replay_service_pb2.StreamState]) -> list[StreamState]:
    if len(states) > MAX_CHUNKS_ASKED:
        raise RejectedError(f"a call speaks of at most {MAX_CHUNKS_ASKED} streams, got {len(states)}")
    for state in states:
        check_name(state.stream, max(state.chunk, state.oldest_version))
    return [
        StreamState(
            name=state.stream,
            chunk=state.chunk,
            oldest_version=state.oldest_version if state.HasField("oldest_version") else None,
            step_s=max(0.0, in_seconds(state.step_time)),
            task=state.task,
        )
        for state in states
    ]


def _closing(closing: ForecastRow | None) -> replay_service_pb2.Closing | None:
    if closing is None:
        return None
    return replay_service_pb2.Closing(
        use_version=closing.use_version,
        closes_in=map(duration, closing.closes_in_s),
        waits=duration(closing.waits_s),
        interval=duration(closing.interval_s),
    )


def _leased_chunk(chunk: Chunk) -> replay_service_pb2.LeasedChunk:
    return replay_service_pb2.LeasedChunk(
        name=fragment_pb2.ChunkName(stream=chunk.name.stream, chunk=chunk.name.number),
        fragments=len(chunk.fragments),
        payload_bytes=chunk.payload_bytes,
        uses=chunk.uses,
        oldest_version=chunk.oldest_version,
        steps=chunk.steps,
    )
