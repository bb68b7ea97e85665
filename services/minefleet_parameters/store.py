"""Versions on disk.

DIRECTORY/
├── lock             held by the process that serves the directory
├── identity.json    the run, the newest epoch and version that were issued, the pinned versions
├── versions/        VERSION.json: run, epoch and manifest of one version
├── tensors/         DIGEST.safetensors: one tensor under its digest
└── incoming/        publishes under way; emptied at start

One file per tensor: versions share a file by naming its digest, dropping a version frees exactly the tensors that no
other one needs, and a publish is renames of files that were written aside. A version is read without minefleet by

    tensors = json.load(open("versions/12.json"))["manifest"]["tensors"]
    {t["name"]: load_file(f"tensors/{t['digest']}.safetensors")[t["digest"]] for t in tensors}

Those that travel as bfloat16 are BF16 there. Tensors of equal bytes share a file even if dtype or shape differ; then
the manifest's are right.

A publish becomes visible when its manifest is renamed into versions/. What a crash leaves of an earlier moment is
removed at the next start; what it left undone after it, the removal of expired versions, is done then.
"""

import fcntl
import itertools
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray

from minefleet.core.atomic_files import remove_partial_files, write_whole
from minefleet.core.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    NotFoundError,
    OverloadedError,
    RejectedError,
    RunMismatchError,
)
from minefleet.rpc.weights.manifest import check_architecture, check_manifest, info_of
from minefleet.rpc.weights.missing_tensors_refusal import MissingTensorsError
from minefleet.rpc.weights.tensor_message_serializer import Piece
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet_parameters.store_identity import IDENTITY_FILE, StoreIdentity, check_identity, read_identity
from minefleet_parameters.tensor_files import Span, TensorFiles, Whole, spans
from minefleet_parameters.version_records import newest_damaged, read_version
from minefleet_parameters.weights_upload import DISK_FULL_RETRY_S, WeightsUpload
from minefleet_runtime.retryable_resource_errors import overloaded_when_full

SYNCS_AT_ONCE = 16
"""The file system commits so many fsyncs together."""

MAX_PINNED = 64
"""Anybody may pin: this bounds the disk, to so many versions beside the newest."""

UNPIN_RETRY_S = 5.0


@contextmanager
def open_store(directory: Path, *, keep: int) -> Iterator["ParameterStore"]:
    """Opens a directory for this process alone and removes what a crash has left.

    Args:
        directory: Made when it does not exist.
        keep: How many of the newest versions to keep, >= 1.

    Raises:
        ConfigError: If another process serves the directory.
        CorruptError: If one of its files cannot be read.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process serves the parameters in {directory}") from error
        with ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="tensor-sync") as pool:
            store = ParameterStore(directory, keep, pool)
            store.recover()
            yield store


class ParameterStore:
    """Publishes versions and reads them. Thread-safe; reading takes no lock."""

    def __init__(self, directory: Path, keep: int, pool: Executor) -> None:
        self.identity = StoreIdentity()
        self.tensors = TensorFiles(directory / "tensors")
        self._keep = keep
        self._pool = pool
        self._directory = directory
        self._identity_path = directory / IDENTITY_FILE
        self._versions_path = directory / "versions"
        self._incoming_path = directory / "incoming"
        self._lock = threading.Lock()
        self._uploads = itertools.count()
        # Replaced, never changed, so that readers need no lock.
        self._versions: Mapping[int, weights_pb2.Version] = {}

    @property
    def kept(self) -> list[int]:
        """The versions that can be read, oldest first."""
        return sorted(self._versions)

    def recover(self) -> None:
        """Reads the directory and removes what a crash has left in it."""
        shutil.rmtree(self._incoming_path, ignore_errors=True)
        self._incoming_path.mkdir()
        self._versions_path.mkdir(exist_ok=True)
        remove_partial_files(self._directory)
        remove_partial_files(self._versions_path)
        self.identity = read_identity(self._identity_path)
        versions = [read_version(path) for path in self._versions_path.glob("*.json")]
        self._versions = {version.version: version for version in versions}
        check_identity(self.identity, versions, self._identity_path)
        self._skip_damaged()
        self.tensors.recover(self._entries())
        self._expire()
        self.purge()

    def open_epoch(self, run_id: str, epoch: int, version: int) -> StoreIdentity:
        """Fences every earlier epoch; the answer's numbers are above the store's and the checkpoint's.

        Raises:
            RunMismatchError: If the store holds another run.
        """
        with self._lock:
            if self.identity.run_id not in ("", run_id):
                raise RunMismatchError(f"parameters holds run {self.identity.run_id}, the learner is of run {run_id}")
            opened = replace(
                self.identity,
                run_id=run_id,
                epoch=max(self.identity.epoch, epoch) + 1,
                newest_version=max(self._newest, version),
            )
            self._write_identity(opened)
            return opened

    def version(self, number: int = 0) -> weights_pb2.Version:
        """Returns a version; 0 means the newest.

        Raises:
            NotFoundError: If it has expired or was never published. Names what is there.
        """
        versions = self._versions
        if not versions:
            raise NotFoundError("no version has been published yet")
        if number not in versions and number != 0:
            raise NotFoundError(
                f"version {number} is not there; the oldest available is {min(versions)}, the newest {max(versions)}"
            )
        return versions[number or max(versions)]

    def info(self, number: int = 0) -> weights_pb2.VersionInfo:
        """Returns a version without its tensors; 0 means the newest. Raises as `version` does."""
        version = self.version(number)
        return info_of(version, pinned=version.version in self.identity.pinned)

    def read(self, number: int, span: Span, *, wait: bool = True) -> Piece:
        """Returns a part of a tensor of a version, verified.

        Raises:
            OSError: Without `wait`, if it would take the disk.
            CorruptError: If the tensor is not what it was; it counts as lacking from then on.
            NotFoundError: If the version has expired meanwhile.
        """
        try:
            return self.tensors.read(span, wait=wait)
        except FileNotFoundError as error:
            self.version(number)
            self.tensors.forget(span.digest)
            raise CorruptError(f"tensor {span.digest} is gone from the disk of parameters") from error

    def read_whole(self, number: int, entry: weights_pb2.TensorEntry) -> NDArray[np.uint8]:
        """Returns the bytes of a tensor of a version. Raises as `read` does."""
        data = np.empty(entry.size_bytes, np.uint8)
        for span in spans(entry.digest, 0, entry.size_bytes):
            data[span.offset : span.offset + span.size_bytes] = self.read(number, span).data
        return data

    def check(self, header: parameters_service_pb2.PublishHeader) -> int | None:
        """Refuses a publish that cannot succeed. Returns its version if it has gone through before.

        Raises:
            RejectedError: If the manifest is malformed.
            RunMismatchError: If the store holds another run.
            FencedError: If the epoch is not the newest, or another version was published first.
            ContractError: If the architecture differs.
        """
        check_manifest(header.manifest)
        with self._lock:
            return self._check(header)

    def begin(self, header: parameters_service_pb2.PublishHeader) -> WeightsUpload:
        """Returns what receives a publish that `check` has let through; nothing is written yet."""
        return WeightsUpload(self._incoming_path / str(next(self._uploads)), header, self._pool)

    def commit(self, upload: WeightsUpload) -> int:
        """Makes an upload the newest version, durable and visible, and returns its number.

        Raises:
            RejectedError: If a tensor is not what the manifest says, or not finite.
            MissingTensorsError: If a tensor was neither sent nor held.
            FencedError: If another publish or a newer epoch has overtaken it.
            OverloadedError: If the disk is full; nothing is left behind.
        """
        header = upload.header
        with upload.handing_over() as whole, self._lock:
            repeated = self._check(header)
            if repeated is not None:
                return repeated
            needed = {entry.digest for entry in header.manifest.tensors}
            lacking = needed - self.tensors.held - whole.keys()
            if lacking:
                raise MissingTensorsError(sorted(lacking))
            self._install(header, whole)
            return self._newest

    def purge(self) -> None:
        """Removes expired versions, and tensors that no kept one needs, from the disk.

        Apart from `commit`, so that no learner waits for it.
        """
        with self._lock:
            names = {self._version_path(number).name for number in self._versions}
            for path in self._versions_path.iterdir():
                if path.name not in names:
                    path.unlink()
        self.tensors.purge()

    def pin(self, number: int = 0) -> weights_pb2.VersionInfo:
        """Keeps a version whatever its age, until it is unpinned; 0 means the newest. Returns it as it is now.

        Raises:
            NotFoundError: If it has expired or was never published.
            OverloadedError: If `MAX_PINNED` others are pinned, or the disk is full.
        """
        with self._lock:
            version = self.version(number)
            pinned = {*self.identity.pinned} & self._versions.keys() | {version.version}
            if len(pinned) > MAX_PINNED:
                raise OverloadedError(f"{MAX_PINNED} versions are pinned, more may not be; unpin one", UNPIN_RETRY_S)
            self._write_identity(replace(self.identity, pinned=tuple(sorted(pinned))))
            return info_of(version, pinned=True)

    def unpin(self, number: int = 0) -> weights_pb2.VersionInfo:
        """Unpins a version; 0 means the newest. Returns it as it is now: only its number, if it is gone."""
        with self._lock:
            unpinned = number or max(self._versions, default=0)
            pinned = tuple(pin for pin in self.identity.pinned if pin != unpinned)
            self._write_identity(replace(self.identity, pinned=pinned))
            self._expire()
            version = self._versions.get(unpinned)
        self.purge()
        return weights_pb2.VersionInfo(version=unpinned) if version is None else info_of(version)

    def _skip_damaged(self) -> None:
        """Never issues the number of a version again whose record was set aside: somebody may have read it."""
        damaged = newest_damaged(self._versions_path)
        if damaged > self._newest:
            self._write_identity(replace(self.identity, newest_version=damaged))

    @property
    def _newest(self) -> int:
        return max((self.identity.newest_version, *self._versions))

    @property
    def _promoted(self) -> int:
        return self.info().promoted if self._versions else 0

    def _version_path(self, number: int) -> Path:
        return self._versions_path / f"{number}.json"

    def _entries(self) -> Iterator[weights_pb2.TensorEntry]:
        return (entry for version in self._versions.values() for entry in version.manifest.tensors)

    def _write_identity(self, identity: StoreIdentity) -> None:
        with overloaded_when_full(DISK_FULL_RETRY_S):
            write_whole(self._identity_path, json.dumps(asdict(identity)))
        self.identity = identity

    def _check(self, header: parameters_service_pb2.PublishHeader) -> int | None:
        ours = self.identity
        if header.run_id != ours.run_id:
            raise RunMismatchError(
                f"parameters holds {f'run {ours.run_id}' if ours.run_id else 'no run yet'}, "
                f"the learner publishes for run {header.run_id or '(none)'}"
            )
        if header.epoch != ours.epoch:
            raise FencedError(f"epoch {header.epoch} may not publish: epoch {ours.epoch} is the newest")
        repeated = self._versions.get(header.expected_version + 1)
        if repeated is not None and repeated.epoch == header.epoch and repeated.manifest == header.manifest:
            return repeated.version
        if header.expected_version != self._newest:
            raise FencedError(f"version {self._newest} is the newest, the publish expected {header.expected_version}")
        if self._versions:
            check_architecture(self.version().manifest.tensors, header.manifest.tensors)
        promoted, before = header.manifest.promoted, self._promoted
        if promoted and (promoted < before or promoted not in self._versions):
            raise RejectedError(
                f"version {promoted} cannot be promoted: {before} is, and the versions {self.kept} are kept"
            )
        return None

    def _install(self, header: parameters_service_pb2.PublishHeader, whole: Mapping[str, Whole]) -> None:
        version = weights_pb2.Version(
            version=self._newest + 1, epoch=header.epoch, run_id=header.run_id, manifest=header.manifest
        )
        version.publish_time.GetCurrentTime()
        path = self._version_path(version.version)
        try:
            with overloaded_when_full(DISK_FULL_RETRY_S):
                self.tensors.take_over(whole, header.manifest.tensors)
                write_whole(path, json_format.MessageToJson(version, preserving_proto_field_name=True))
        except (OSError, OverloadedError):
            path.unlink(missing_ok=True)
            self.tensors.keep(self._entries())
            self.tensors.purge()
            raise
        self._versions = {**self._versions, version.version: version}
        self._expire()

    def _expire(self) -> None:
        keep = {*self.kept[-self._keep :], *self.identity.pinned, self._promoted}
        self._versions = {number: version for number, version in self._versions.items() if number in keep}
        self.tensors.keep(self._entries())
