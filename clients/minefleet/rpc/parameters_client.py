"""A client of parameters: the learner publishes weights, actors follow them.

Weights are NumPy arrays by name. Every call has a deadline and is repeated until it is answered: a publish is known by
its epoch and expected version, a fetch goes on where it was cut, and a lost epoch only leaves a gap in the numbers.
"""

import functools
import random
import threading
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, NotFoundError
from minefleet.rpc.channel import CALL_TIMEOUT_S
from minefleet.rpc.message_pieces import bundled
from minefleet.rpc.service_client import ServiceClient
from minefleet.rpc.weights.manifest import (
    NO_ARCHITECTURE,
    Architecture,
    Weights,
    check_architecture,
    check_manifest,
    describe,
    entries_of,
    fingerprint_of,
    from_wire,
    info_of,
)
from minefleet.rpc.weights.missing_tensors_refusal import MissingTensorsError, missing_digests
from minefleet.rpc.weights.tensor_downloads import Downloads
from minefleet.rpc.weights.tensor_message_serializer import cut, encode, fetch_call, pieces_in, publish_call
from minefleet.rpc.weights.version_info import Epoch, VersionInfo, read_info
from minefleet.rpc.weights.version_watch import Watch
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc, weights_pb2

WATCH_TIMEOUT_S = (45.0, 60.0)
"""A watch is opened anew so often, so that a server that hangs is noticed although it need not say anything. Drawn each
time, so that watches that began together, when the server came back, do not stay together."""

SLOWEST_BYTES_PER_S = 1e6
"""Transfers get a deadline that this rate meets."""


class ParametersClient(ServiceClient):
    """Talks to one parameters service. One thread may publish while another follows.

    Args:
        address: `host:port`.
        watcher: Names this process in metrics, and to be named to film.
        can_film: Whether this process can film episodes, if `films` says that it shall.
        architecture: Of the policy that shall run what is watched; parameters refuses one that it does not hold.
        rounded: Names of the float32 tensors that are published as bfloat16; all others stay exact.
        options: As for `ServiceClient`.
    """

    def __init__(
        self,
        address: str,
        *,
        watcher: str = "",
        can_film: bool = False,
        architecture: Architecture = NO_ARCHITECTURE,
        rounded: Collection[str] = (),
        **options: Any,
    ) -> None:
        super().__init__("parameters", address, **options)
        self.films = False
        """Whether this process is the one that films, as parameters said last."""
        self._watcher = watcher
        self._can_film = can_film
        self._architecture = architecture
        self._rounded = frozenset(rounded)
        self._stub = parameters_service_pb2_grpc.ParametersServiceStub(self._channel)
        self._publish_call = publish_call(self._channel)
        self._fetch_call = fetch_call(self._channel)
        self._next = pb.PublishHeader()
        self._held: frozenset[str] = frozenset()
        self._downloads = Downloads()
        self._running_version = 0

    def open_epoch(self, run_id: str, epoch: int = 0, version: int = 0) -> Epoch:
        """Starts a learner on a run, from a checkpoint's epoch and version (0 for a fresh run). Fences earlier ones.

        Raises:
            ContractError: If parameters holds another run; names both.
        """
        request = pb.OpenEpochRequest(run_id=run_id, epoch=epoch, version=version)
        opened = self._call(lambda: self._stub.OpenEpoch(request, timeout=CALL_TIMEOUT_S))
        self._next = pb.PublishHeader(run_id=run_id, epoch=opened.epoch, expected_version=opened.newest_version)
        self._held = self._digests_of_newest()
        return Epoch(opened.epoch, opened.newest_version)

    def publish(self, weights: Weights, *, iteration: int, promoted: int = 0, settings: str = "") -> int:
        """Publishes weights as the next version and returns it. Sends only tensors that changed.

        The arrays must stay as they are until this returns. With `promoted` all slots but canaries act by that version;
        `settings` are of the iteration that starts from these weights.

        Raises:
            FencedError: If a newer epoch was opened, or this one has published elsewhere.
            RejectedError: If the weights hold NaN or infinity.
            ContractError: If the architecture is not the run's.
        """
        manifest, parts = describe(
            weights, iteration=iteration, promoted=promoted, rounded=self._rounded, settings=settings
        )
        self._next.manifest.CopyFrom(manifest)
        sending = parts.keys() - self._held
        while True:
            try:
                version = self._call(functools.partial(self._send, {digest: parts[digest] for digest in sending}))
                break
            except MissingTensorsError as error:
                if error.digests <= sending:
                    raise
                sending |= error.digests
        self._next.expected_version = version
        self._held = frozenset(parts)
        return version

    def watch(self) -> Generator[VersionInfo, None, None]:
        """Yields the newest version, then newer ones as they come, for ever; the slow miss some. Keeps `films` current.

        Raises:
            StoppedError: When this process is asked to stop.
            ContractError: If the published policy has another architecture than this process's; names the tensors.
        """
        watch = Watch(self._open_watch, self._stopping)
        threading.Thread(target=watch.hang_up_when_stopped, name="parameters-hang-up", daemon=True).start()
        announced: VersionInfo | None = None
        try:
            while True:
                response = self._receive(watch)
                if response is None:
                    # Introduced again, so that a server that hangs is found out by the deadline of that.
                    self._introduce_again()
                    continue
                self.films = bool(self._watcher) and response.films == self._watcher
                if (info := read_info(response.newest)) != announced:
                    announced = info
                    yield info
        finally:
            watch.hang_up()

    def fetch(self, version: int = 0, *, canary: bool = False) -> tuple[VersionInfo, dict[str, NDArray[Any]]]:
        """Returns a version and its weights as read-only arrays. Fetches only tensors that changed.

        0 stands for the newest that all slots may act by; with `canary` for the newest of all.

        Raises:
            NotFoundError: If the version has expired or was never published. Names the oldest available.
            CorruptError: If a tensor does not match its digest.
        """
        fetched = self._call(lambda: self._fetch(version, canary=canary))
        self._downloads.keep(fetched.manifest)
        # bfloat16 is decoded anew each time: as a rule every tensor has changed, and both forms would have to be kept.
        weights = {entry.name: from_wire(entry, self._downloads[entry.digest]) for entry in fetched.manifest.tensors}
        return read_info(info_of(fetched)), weights

    def runs(self, version: int) -> None:
        """Sets the version that this process runs; sent with the next call that watches or fetches."""
        self._running_version = version

    def versions(self) -> list[VersionInfo]:
        """Returns the versions that can be fetched, oldest first."""
        listed = self._call(lambda: self._stub.ListVersions(pb.ListVersionsRequest(), timeout=CALL_TIMEOUT_S))
        return [read_info(info) for info in listed.versions]

    def pin(self, version: int = 0) -> VersionInfo:
        """Keeps a version, 0 for the newest, whatever its age, until it is unpinned. Returns it as it is now.

        Raises:
            NotFoundError: If the version has expired or was never published. Names the oldest available.
            OverloadedError: If patience ends while as many versions are pinned as may be.
        """
        return self._pin(pb.PinRequest(version=version, pinned=True))

    def unpin(self, version: int = 0) -> VersionInfo:
        """Unpins a version, 0 for the newest. Returns it as it is now: only its number, if it is gone."""
        return self._pin(pb.PinRequest(version=version, pinned=False))

    def _pin(self, request: pb.PinRequest) -> VersionInfo:
        return read_info(self._call(lambda: self._stub.Pin(request, timeout=CALL_TIMEOUT_S)).version)

    def _receive(self, watch: Watch) -> pb.WatchResponse | None:
        try:
            return self._call(watch.read)
        except ContractError:
            if self._architecture:
                check_architecture(
                    self._call(lambda: self._manifest(0)).manifest.tensors, entries_of(self._architecture)
                )
            raise

    def _open_watch(self) -> Any:
        request = pb.WatchRequest(
            watcher=self._watcher,
            architecture_fingerprint=fingerprint_of(self._architecture) if self._architecture else "",
            running_version=self._running_version,
            can_film=self._can_film,
        )
        return self._stub.Watch(request, timeout=random.uniform(*WATCH_TIMEOUT_S))

    def _digests_of_newest(self) -> frozenset[str]:
        try:
            newest = self._call(lambda: self._manifest(0))
        except NotFoundError:
            return frozenset()
        return frozenset(entry.digest for entry in newest.manifest.tensors)

    def _send(self, parts: Mapping[str, NDArray[np.uint8]]) -> int:
        timeout_s = _transfer_timeout_s(sum(part.nbytes for part in parts.values()))
        try:
            return self._publish_call(_messages(self._next, parts), timeout=timeout_s).version
        except grpc.RpcError as error:
            missing = missing_digests(error)
            if missing:
                raise MissingTensorsError(sorted(missing)) from error
            raise

    def _manifest(self, number: int) -> weights_pb2.Version:
        request = pb.FetchRequest(version=number, watcher=self._watcher, running_version=self._running_version)
        (response,) = self._stub.Fetch(request, timeout=CALL_TIMEOUT_S)
        check_manifest(response.version.manifest)
        return response.version

    def _fetch(self, number: int, *, canary: bool) -> weights_pb2.Version:
        version = self._manifest(number)
        if not number and not canary and version.manifest.promoted:
            version = self._manifest(version.manifest.promoted)
        ranges = self._downloads.want(version.manifest)
        if ranges:
            self._receive_tensors(version, ranges)
        self._downloads.check_whole(version.manifest)
        return version

    def _receive_tensors(self, version: weights_pb2.Version, ranges: Sequence[pb.TensorRange]) -> None:
        request = pb.FetchRequest(
            version=version.version, ranges=ranges, watcher=self._watcher, running_version=self._running_version
        )
        size_bytes = sum(entry.size_bytes for entry in version.manifest.tensors)
        call = self._fetch_call(request, timeout=_transfer_timeout_s(size_bytes))
        try:
            for response in call:
                for piece in pieces_in(response):
                    self._downloads.add(piece)
        finally:
            call.cancel()


def _messages(header: pb.PublishHeader, parts: Mapping[str, NDArray[np.uint8]]) -> Iterator[pb.PublishRequest | bytes]:
    yield pb.PublishRequest(header=header)
    pieces = (piece for digest, part in parts.items() for piece in cut(digest, part.data))
    yield from map(encode, bundled((piece, len(piece.data)) for piece in pieces))


def _transfer_timeout_s(size_bytes: int) -> float:
    return CALL_TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S
