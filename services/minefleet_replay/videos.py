"""Videos beside the database, one file each: they are few and large, and nothing of them is ever rewritten.

<directory>/
├── 00000042.video    length of the head, checksum, head, and the file that was sent
└── .laid-aside-*     on their way: written before the lock is taken, renamed once their row is written

A video has a number in the log of episodes; its row there is empty. The newest are held, at most `VIDEOS_HELD`, within
`max_bytes`. A row without its file is a video that was lost or removed, and is passed over.
"""

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812  # It is a class.
from typing import NamedTuple

import xxhash
from google.protobuf.message import DecodeError

from minefleet.errors import CorruptError
from minefleet.files import sync, write_durably
from minefleet.v1 import episode_pb2
from minefleet_replay.shortage import SHORTAGES

logger = logging.getLogger(__name__)

VIDEOS = "videos"
"""Their directory, in the store's."""
VIDEOS_HELD = 64
ROW = b""
"""The row of a video among those of episodes, none of which is empty."""

_HEAD = Struct("<IQ")
_SUFFIX = ".video"


class Held(NamedTuple):
    """What is known of a video without reading it."""

    stream: str
    episode: int
    file_bytes: int


class Videos:
    """The files. One thread changes at a time; any may lay aside and read."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._held: dict[int, Held] = {}

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files."""
        return sum(held.file_bytes for held in self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def load(self, numbers: Iterable[int]) -> None:
        """Takes stock of the videos of these numbers, and removes all other files."""
        wanted = {self._path(number): number for number in numbers}
        for path in self._directory.glob("*") if self._directory.is_dir() else ():
            if path not in wanted:
                path.unlink()
        for path, number in sorted(wanted.items()):
            try:
                head = _read_head(path)
            except (FileNotFoundError, CorruptError) as error:
                logger.warning("video %d is lost: %s", number, error)
            else:
                self._held[number] = Held(head.stream, head.episode, path.stat().st_size)

    def knows(self, video: episode_pb2.Video) -> bool:
        """Whether the episode's video is held."""
        return any((held.stream, held.episode) == (video.stream, video.episode) for held in self._held.values())

    @contextmanager
    def laid_aside(self, video: episode_pb2.Video | None) -> Iterator[Path | None]:
        """Writes a video to where it can be placed from; None where there is none, or no room for it.

        What was placed by the end of the block survives power loss if its row does.
        """
        if video is None:
            yield None
            return
        try:
            aside = self._write(video)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            logger.warning("a video of %s/%d is dropped: %s", video.stream, video.episode, error)
            yield None
            return
        try:
            yield aside
            sync(self._directory)
        finally:
            aside.unlink(missing_ok=True)

    def surplus(self, video_bytes: int) -> list[int] | None:
        """Numbers of the oldest, which must go so that a video fits; None where it never does."""
        if video_bytes > self._max_bytes:
            return None
        gone, left_bytes = list[int](), self.disk_bytes + video_bytes
        for number, held in sorted(self._held.items()):
            if left_bytes <= self._max_bytes and len(self._held) - len(gone) < VIDEOS_HELD:
                break
            gone.append(number)
            left_bytes -= held.file_bytes
        return gone

    def older_than(self, number: int) -> list[int]:
        """Numbers of those held before `number`."""
        return [held for held in self._held if held < number]

    def place(self, aside: Path, number: int, video: episode_pb2.Video) -> None:
        """Holds a video under its number, once its row is written."""
        self._held[number] = Held(video.stream, video.episode, aside.stat().st_size)
        aside.rename(self._path(number))

    def remove(self, numbers: Iterable[int]) -> None:
        """Gives their disk space back."""
        for number in numbers:
            del self._held[number]
            self._path(number).unlink(missing_ok=True)

    def read(self, number: int) -> episode_pb2.Video | None:
        """Reads a video; None where it is no longer held, or damaged."""
        path = self._path(number)
        try:
            return _checked(path.read_bytes())
        except FileNotFoundError:
            return None
        except CorruptError as error:
            logger.warning("%s is damaged and left out: %s", path, error)
            return None

    def _write(self, video: episode_pb2.Video) -> Path:
        self._directory.mkdir(exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".laid-aside-", dir=self._directory)
        os.close(descriptor)
        aside = Path(name)
        try:
            write_durably(aside, _pack(video))
        except OSError:
            aside.unlink()
            raise
        return aside

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08}{_SUFFIX}"


def _pack(video: episode_pb2.Video) -> bytes:
    head = episode_pb2.Video()
    head.CopyFrom(video)
    head.ClearField("data")
    packed = head.SerializeToString()
    return _HEAD.pack(len(packed), _checksum(packed, video.data)) + packed + video.data


def _checksum(head: bytes, data: bytes) -> int:
    # The length is in it, or bytes could pass from one to the other.
    digest = xxhash.xxh3_64(head, seed=len(head))
    digest.update(data)
    return digest.intdigest()


def _read_head(path: Path) -> episode_pb2.Video:
    with path.open("rb") as file:
        try:
            length, _ = _HEAD.unpack(file.read(_HEAD.size))
            return episode_pb2.Video.FromString(file.read(length))
        except (StructError, DecodeError) as error:
            raise CorruptError(f"its head cannot be read: {error}") from error


def _checked(content: bytes) -> episode_pb2.Video:
    try:
        length, expected = _HEAD.unpack_from(content)
        head, data = content[_HEAD.size : _HEAD.size + length], content[_HEAD.size + length :]
        if _checksum(head, data) != expected:
            raise CorruptError("its bytes do not match their checksum")
        video = episode_pb2.Video.FromString(head)
    except (StructError, DecodeError) as error:
        raise CorruptError(f"its head cannot be read: {error}") from error
    video.data = data
    return video
