"""Payloads on disk: a log of files that are written once, in order, and removed whole.

RocksDB would write each payload twice, into its log and from there into a file, check it three times, and hold the GIL
for most of that. A payload needs none of it: nothing refers to it before the row is written that names its place, so
whatever a crash leaves behind is either named or not there.

<directory>/
└── 00000007.payloads   payloads back to back, the newest file at the end; rows say where each lies

A file takes payloads until it is full, and is removed when no stored fragment lies in it any more: first in, first out,
files die whole. Files in which everything is dead wait for the rows that say so to survive power loss.
"""

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from minefleet.core.atomic_files import sync
from minefleet.core.errors import CorruptError
from minefleet.rpc.message_pieces import PIECE_BYTES, Piece
from minefleet_replay.state.chunk import PayloadLocation
from minefleet_replay.storage.rocksdb_store import StorageError
from minefleet_runtime.retryable_resource_errors import overloaded_when_full

SUFFIX = ".payloads"


class PayloadLog:
    """The files. One thread writes and counts at a time; any may read and sync."""

    def __init__(self, directory: Path, *, file_bytes: int, sizes: dict[int, int]) -> None:
        """Stores its arguments; nothing is written yet.

        Args:
            directory: Of the files; nobody else's.
            file_bytes: A file with so many bytes is full.
            sizes: Bytes of the files that are there, by number.
        """
        self._directory = directory
        self._file_bytes = file_bytes
        self._sizes = dict(sizes)
        self._live = dict.fromkeys(sizes, 0)
        self._newest = max(sizes, default=-1)
        self._descriptor: int | None = None
        self._unsynced: list[int] = []
        self._swapping = threading.Lock()
        self._syncing = threading.Lock()
        self._failure = ""
        self.disk_bytes = sum(sizes.values())
        """Bytes of all files."""

    def write(self, pieces: Sequence[Piece]) -> PayloadLocation:
        """Writes a payload at the end, where it survives `kill -9`.

        Raises:
            OverloadedError: If the disk is full or too many files are open; nothing was written.
        """
        with overloaded_when_full():
            descriptor = self._open()
            place = PayloadLocation(self._newest, self._sizes[self._newest])
            written_bytes = _write(descriptor, pieces, place.offset)
        self._sizes[place.file] += written_bytes
        self.disk_bytes += written_bytes
        return place

    def read(self, place: PayloadLocation, payload_bytes: int) -> list[bytes]:
        """Reads a payload in pieces of `PIECE_BYTES`, the last one shorter. Its bytes are not checked.

        Raises:
            CorruptError: If it is not there.
            OverloadedError: If too many files are open.
        """
        try:
            with overloaded_when_full():
                descriptor = os.open(self.path(place.file), os.O_RDONLY)
        except FileNotFoundError as error:
            raise CorruptError(f"{self.path(place.file)} is missing") from error
        try:
            ends = range(place.offset, place.offset + payload_bytes, PIECE_BYTES)
            left = payload_bytes + place.offset
            return [os.pread(descriptor, min(PIECE_BYTES, left - start), start) for start in ends]
        except OSError as error:
            raise CorruptError(f"cannot read {self.path(place.file)}: {error}") from error
        finally:
            os.close(descriptor)

    def holds(self, place: PayloadLocation, payload_bytes: int) -> bool:
        """Whether there is a file that is long enough."""
        return self._sizes.get(place.file, 0) >= place.offset + payload_bytes

    def size(self, file: int) -> int:
        """Bytes of a file."""
        return self._sizes.get(file, 0)

    def hold(self, file: int) -> None:
        """One more stored fragment lies in a file."""
        self._live[file] = self._live.get(file, 0) + 1
        self._newest = max(self._newest, file)

    def release(self, file: int) -> None:
        """A fragment that lies in a file has left."""
        self._live[file] -= 1

    def dead(self) -> list[int]:
        """Files in which no stored fragment lies. What is written after this lies in another file."""
        dead = [file for file in self._sizes if not self._live[file]]
        if self._newest in dead:
            self._close()
        return dead

    def remove(self, files: Iterable[int]) -> None:
        """Removes dead files, once what was written of them survives power loss."""
        for file in files:
            if file in self._sizes:
                self.path(file).unlink()
                self.disk_bytes -= self._sizes.pop(file)
                del self._live[file]

    def sync(self) -> None:
        """Returns once all that has been written survives power loss.

        Raises:
            StorageError: If that failed once. The kernel forgets what it could not write, so repeating proves nothing.
        """
        with self._syncing:
            if self._failure:
                raise StorageError(self._failure)
            with self._swapping:
                descriptors, self._unsynced = self._unsynced, []
                if self._descriptor is not None:
                    descriptors.append(os.dup(self._descriptor))
            try:
                for descriptor in descriptors:
                    os.fdatasync(descriptor)
                    os.close(descriptor)
                sync(self._directory)
            except OSError as error:
                self._failure = f"payloads cannot be synced: {error}"
                raise StorageError(self._failure) from error

    def close(self) -> None:
        """Syncs and closes."""
        self._close()
        self.sync()

    def path(self, file: int) -> Path:
        """The path of a file."""
        return self._directory / f"{file:08d}{SUFFIX}"

    def _open(self) -> int:
        """The newest file, or the next one when that is full or of an earlier process."""
        if self._descriptor is not None and self._sizes[self._newest] < self._file_bytes:
            return self._descriptor
        self._close()
        self._descriptor = os.open(self.path(self._newest + 1), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._newest += 1
        self._sizes[self._newest] = self._live[self._newest] = 0
        return self._descriptor

    def _close(self) -> None:
        """Ends the newest file; it is synced with the next `sync`."""
        with self._swapping:
            if self._descriptor is not None:
                self._unsynced.append(self._descriptor)
                self._descriptor = None


def open_payloads(directory: Path, *, file_bytes: int) -> PayloadLog:
    """Finds the files of a directory, and makes it where it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    sizes = {int(path.name.removesuffix(SUFFIX)): path.stat().st_size for path in directory.glob(f"*{SUFFIX}")}
    return PayloadLog(directory, file_bytes=file_bytes, sizes=sizes)


def _write(descriptor: int, pieces: Sequence[Piece], offset: int) -> int:
    """Writes all pieces from an offset on. Returns their bytes."""
    rest = [memoryview(piece) for piece in pieces]
    start = offset
    while rest:
        written_bytes = os.pwritev(descriptor, rest, offset)
        offset += written_bytes
        while rest and written_bytes >= len(rest[0]):
            written_bytes -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written_bytes:]
    return offset - start
