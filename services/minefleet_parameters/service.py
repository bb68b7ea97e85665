"""The ParametersService: what the proto promises, on top of the store.

An aio server, so that a thousand watches hold no thread. Whatever waits for the disk runs in `asyncio.to_thread`.

    learner ── Publish ──▶ upload ── commit ──▶ store ── Fetch ──▶ actors
                                       │                             ▲
                                       └──▶ announcement ── Watch ───┘

There is no queue: a publish is read as fast as the disk takes it, a fetch is sent as fast as its actor takes it, and
there is one announcement, on which every watch waits.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import grpc

from minefleet.core.errors import ContractError, CorruptError, NotFoundError, OverloadedError, RejectedError
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.manifest import MAX_NAME_LENGTH, unique_bytes
from minefleet.rpc.weights.missing_tensors_refusal import MissingTensorsError
from minefleet.rpc.weights.tensor_message_serializer import SERVICE, AnyPiece, Piece, pieces_in, transfer_handlers
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc, weights_pb2
from minefleet_parameters.announcer import Announcer
from minefleet_parameters.metrics import ParametersMetrics
from minefleet_parameters.store import ParameterStore
from minefleet_parameters.tensor_sender import TensorSender, begin
from minefleet_parameters.watcher_counts import Watchers
from minefleet_parameters.weights_upload import WeightsUpload
from minefleet_runtime.role_status import StatusTracker

MAX_PUBLISHES = 16
"""Publishes at once. A learner has one under way, and those that it gave up on end soon."""

MAX_NUMBER = 2**31
"""Highest epoch and version of a checkpoint: fragments carry versions as uint32."""

Request: TypeAlias = pb.PublishRequest | list[Piece]
PublishContext: TypeAlias = "grpc.aio.ServicerContext[pb.PublishRequest, pb.PublishResponse]"


class ParametersService(parameters_service_pb2_grpc.ParametersServiceServicer):
    """Serves one store."""

    def __init__(self, store: ParameterStore, metrics: ParametersMetrics, status: StatusTracker) -> None:
        self._store = store
        self._sender = TensorSender(store)
        self._metrics = metrics
        self._status = status
        self._announcer = Announcer(store)
        self._watchers = Watchers(metrics, status, self._announcer)
        self._publishing = asyncio.Semaphore(MAX_PUBLISHES)
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Announces what the last process left."""
        self._announcer.renew()
        self._report()

    async def drain_when(self, stopping: threading.Event) -> None:
        """Ends every watch when this process is asked to stop."""
        await asyncio.to_thread(stopping.wait)
        self._announcer.drain()

    async def OpenEpoch(self, request: pb.OpenEpochRequest, context: object) -> pb.OpenEpochResponse:  # noqa: N802
        """Answers as the proto says."""
        if not request.run_id:
            raise RejectedError("an epoch is opened for a run; the request names none")
        if len(request.run_id) > MAX_NAME_LENGTH or not request.run_id.isprintable():
            raise RejectedError(f"{request.run_id[:80]!r} is no name for a run")
        if max(request.epoch, request.version) > MAX_NUMBER:
            raise RejectedError(f"a checkpoint's numbers end at {MAX_NUMBER}, got {request.epoch}, {request.version}")
        opened = await asyncio.to_thread(self._store.open_epoch, request.run_id, request.epoch, request.version)
        self._report()
        return pb.OpenEpochResponse(epoch=opened.epoch, newest_version=opened.newest_version)

    async def Publish(  # noqa: N802
        self, request_iterator: AsyncIterator[Request], context: PublishContext
    ) -> pb.PublishResponse:
        """Answers as the proto says."""
        if self._publishing.locked():
            raise OverloadedError(f"{MAX_PUBLISHES} publishes are under way")
        async with self._publishing:
            return await self._take_in(request_iterator, context)

    async def _take_in(self, request_iterator: AsyncIterator[Request], context: PublishContext) -> pb.PublishResponse:
        requests = aiter(request_iterator)
        header = await _header(requests)
        began = time.monotonic()
        repeated = await asyncio.to_thread(self._store.check, header)
        if repeated is not None:
            return pb.PublishResponse(version=repeated)
        upload = self._store.begin(header)
        try:
            await _receive(requests, upload)
            # Shielded: a caller that hangs up now must not keep a visible version from being announced.
            number = await asyncio.shield(self._commit(upload))
        except MissingTensorsError as error:
            await context.abort(*_status(error))
        finally:
            await asyncio.to_thread(upload.close)
        self._metrics.publish_s.observe(time.monotonic() - began)
        return pb.PublishResponse(version=number)

    async def Watch(self, request: pb.WatchRequest, context: object) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Answers as the proto says."""
        if len(request.watcher) > MAX_NAME_LENGTH:
            raise RejectedError(f"a watcher's name has at most {MAX_NAME_LENGTH} characters")
        with self._watchers.watching(request.watcher, request.running_version, can_film=request.can_film):
            number, announcement = await self._announcer.newer_than(0)
            self._check_fits(request.architecture_fingerprint)
            while True:
                yield announcement
                number, announcement = await self._announcer.newer_than(number)

    async def Fetch(  # type: ignore[override]  # noqa: N802
        self, request: pb.FetchRequest, context: object
    ) -> AsyncIterator[pb.FetchResponse | bytes]:
        """Answers as the proto says."""
        version = self._store.version(request.version)
        asked = _asked(version, request.ranges)
        self._watchers.runs(request.watcher, request.running_version)
        yield pb.FetchResponse(version=version)
        if not asked:
            return
        self._metrics.fetch_saved_bytes.inc(unique_bytes(version.manifest) - sum(e.size_bytes - o for e, o in asked))
        with self._metrics.fetch_s.time(), self._counting_damage():
            async for message in self._sender.send(version.version, asked):
                yield message.encoded
                self._metrics.fetch_bytes.inc(message.size_bytes)

    async def ListVersions(self, request: object, context: object) -> pb.ListVersionsResponse:  # noqa: N802
        """Answers as the proto says."""
        return pb.ListVersionsResponse(versions=map(self._store.info, self._store.kept))

    async def Pin(self, request: pb.PinRequest, context: object) -> pb.PinResponse:  # noqa: N802
        """Answers as the proto says."""
        act = self._store.pin if request.pinned else self._store.unpin
        version = await asyncio.to_thread(act, request.version)
        self._announcer.renew()
        self._report()
        return pb.PinResponse(version=version)

    async def _commit(self, upload: WeightsUpload) -> int:
        number = await asyncio.to_thread(self._store.commit, upload)
        manifest = upload.header.manifest
        self._metrics.publishes.inc()
        self._metrics.publish_bytes.inc(upload.received_bytes)
        self._metrics.publish_saved_bytes.inc(unique_bytes(manifest) - upload.received_bytes)
        self._announcer.renew()
        self._report()
        self._sweeping = asyncio.create_task(asyncio.to_thread(self._store.purge))
        return number

    def _check_fits(self, fingerprint: str) -> None:
        held = self._store.version().manifest.architecture_fingerprint
        if fingerprint not in ("", held):
            raise ContractError(f"the run's policy has the architecture {held}, the watcher's {fingerprint[:80]!r}")

    @contextmanager
    def _counting_damage(self) -> Iterator[None]:
        try:
            yield
        except CorruptError:
            self._metrics.corrupt_reads.inc()
            raise

    def _report(self) -> None:
        kept, identity = self._store.kept, self._store.identity
        self._status.set_run(identity.run_id)
        self._status.set_stats({"newest_version": max(kept, default=0), "kept_versions": len(kept)})
        self._metrics.newest_version.set(max(kept, default=0))
        self._metrics.published_at.set(self._store.info().publish_time.ToNanoseconds() / 1e9 if kept else 0)
        self._metrics.kept_versions.set(len(kept))
        self._metrics.stored_bytes.set(self._store.tensors.stored_bytes)
        self._metrics.epoch.set(identity.epoch)


def add_to_server(service: ParametersService, server: grpc.aio.Server) -> None:
    """Adds the service to a server; pieces bypass protobuf."""
    parameters_service_pb2_grpc.add_ParametersServiceServicer_to_server(service, server)
    server.add_registered_method_handlers(SERVICE, transfer_handlers(service.Publish, service.Fetch))


async def _header(requests: AsyncIterator[Request]) -> pb.PublishHeader:
    async for request in requests:
        if isinstance(request, pb.PublishRequest) and request.HasField("header") and not request.pieces:
            return request.header
        break
    raise RejectedError("a publish begins with its header")


async def _receive(requests: AsyncIterator[Request], upload: WeightsUpload) -> None:
    """Writes each batch while the next one arrives."""
    writing = begin(upload.start)
    async for pieces in _batches(requests):
        await writing
        writing = begin(upload.write, pieces)
    await writing


async def _batches(requests: AsyncIterator[Request]) -> AsyncIterator[list[AnyPiece]]:
    """Yields pieces worth about one full piece, so that small messages do not cost a thread's time each."""
    batch: list[AnyPiece] = []
    size_bytes = 0
    async for request in requests:
        pieces = pieces_in(request)
        if not pieces or (isinstance(request, pb.PublishRequest) and request.HasField("header")):
            raise RejectedError("after its header, a publish consists of pieces")
        batch += pieces
        size_bytes += sum(len(piece.data) for piece in pieces)
        if size_bytes >= PIECE_BYTES:
            yield batch
            batch, size_bytes = [], 0
    yield batch


def _status(error: MissingTensorsError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    status = error.to_status()
    return status.code, status.details, tuple(status.trailing_metadata)


def _asked(version: weights_pb2.Version, ranges: Sequence[pb.TensorRange]) -> list[tuple[weights_pb2.TensorEntry, int]]:
    entries = {entry.digest: entry for entry in version.manifest.tensors}
    if len({wanted.digest for wanted in ranges}) < len(ranges):
        raise RejectedError("a fetch asks for each tensor once")
    for wanted in ranges:
        if wanted.digest not in entries:
            raise NotFoundError(f"version {version.version} has no tensor with the digest {wanted.digest[:32]!r}")
        if wanted.offset > entries[wanted.digest].size_bytes:
            raise RejectedError(f"tensor {entries[wanted.digest].name!r} ends before {wanted.offset}")
    return [(entries[wanted.digest], wanted.offset) for wanted in ranges]
