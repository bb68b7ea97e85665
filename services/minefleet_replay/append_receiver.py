"""Reads an Append: sizes are checked before anything is kept, and a fragment's bytes before it is stored."""

from collections.abc import Callable, Iterable, Iterator

import xxhash

from minefleet.core.errors import RejectedError
from minefleet.rpc.codec import check_header
from minefleet.rpc.message_pieces import PIECE_BYTES, Piece
from minefleet.rpc.payload_message_serializer import parts_in
from minefleet.v1 import episode_pb2, fragment_pb2, replay_service_pb2
from minefleet_replay.engine.append import FragmentUpload
from minefleet_replay.state.actor_step_totals import ActorCounts
from minefleet_replay.storage.fragment_validation import check_finite, check_shapes

MAX_PAYLOAD_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 2**20
MAX_TASK_BYTES = 2**16 - 1
"""As many as a fragment's row can count."""
MAX_EPISODES = 10_000
MAX_EPISODE_BYTES = 64 * 2**10
MAX_NAME_CHARACTERS = 200
MAX_NUMBER = 2**63 - 1

Admit = Callable[[fragment_pb2.FragmentHeader], None]
"""Called with a header before any of its payload is read; raises to reject it."""


def receive(
    requests: Iterable[replay_service_pb2.AppendRequest | memoryview], admit: Admit
) -> Iterator[FragmentUpload]:
    """Yields each fragment once it is whole, with the records that came before it; at the end, what records are left.

    Raises:
        RejectedError: If the parts do not make fragments and records, or a payload fails its checksum.
    """
    receiver = _Receiver(admit)
    try:
        for request in requests:
            for part in parts_in(request):
                receiver.take(part)
                if receiver.is_whole():
                    yield receiver.hand_over()
        if receiver.upload.header is not None:
            raise RejectedError(f"the upload ends {receiver.missing_bytes} bytes before the end of its fragment")
        if receiver.upload.episodes or receiver.upload.actor:
            yield receiver.hand_over()
    finally:
        # gRPC keeps the error of a call that broke off, and with the error all that its frames refer to.
        receiver.upload = FragmentUpload()


def check_name(stream: str, number: int) -> None:
    """Rejects names that are empty or too long, and numbers that are too large."""
    if not 0 < len(stream) <= MAX_NAME_CHARACTERS or number > MAX_NUMBER:
        raise RejectedError(
            f"a name is a stream of 1 to {MAX_NAME_CHARACTERS} characters and a number <= {MAX_NUMBER}, got "
            f"{len(stream)} characters and {number}"
        )


class _Receiver:
    """The bytes received since the last fragment was whole."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self.upload = FragmentUpload()
        self.missing_bytes = 0
        self._digest = xxhash.xxh3_64()

    def take(self, part: replay_service_pb2.AppendPart | memoryview) -> None:
        """Takes the next part."""
        if isinstance(part, memoryview):
            self._take_piece(part)
            return
        match part.WhichOneof("part"):
            case "header":
                self._take_header(part.header)
            case "payload":
                self._take_piece(part.payload)
            case "episode":
                self._take_episode(part.episode)
            case "progress":
                self._take_progress(part.progress)
            case other:
                raise RejectedError(f"an Append carries no {other or 'empty part'}")

    def is_whole(self) -> bool:
        """Whether a fragment has come to its last byte."""
        return self.upload.header is not None and self.missing_bytes == 0

    def hand_over(self) -> FragmentUpload:
        """Returns what has come, and begins anew.

        Raises:
            RejectedError: If a payload fails its checksum.
        """
        upload, self.upload = self.upload, FragmentUpload()
        header = upload.header
        if header is not None and self._digest.intdigest() != header.checksum:
            raise RejectedError(
                f"the payload of {header.name.stream}/{header.name.sequence} does not match its header: "
                f"{header.payload_bytes} bytes with checksum {header.checksum:016x}"
            )
        if header is not None:
            check_finite(header, upload.pieces, PIECE_BYTES)
        return upload

    def _take_header(self, header: fragment_pb2.FragmentHeader) -> None:
        if self.upload.header is not None:
            raise RejectedError(f"a header came {self.missing_bytes} bytes before the end of the fragment before it")
        check_name(header.name.stream, max(header.name.sequence, header.newest_version))
        if not header.chunk <= header.chunk_start <= header.name.sequence:
            raise RejectedError(
                f"chunks follow each other: fragment {header.name.sequence} cannot lie in chunk {header.chunk}, "
                f"which begins with fragment {header.chunk_start}"
            )
        if header.payload_bytes > MAX_PAYLOAD_BYTES or header.ByteSize() > MAX_HEADER_BYTES:
            raise RejectedError(
                f"a fragment has at most {MAX_PAYLOAD_BYTES} bytes and {MAX_HEADER_BYTES} of header, got "
                f"{header.payload_bytes} and {header.ByteSize()}"
            )
        if len(header.task.encode()) > MAX_TASK_BYTES:
            raise RejectedError(
                f"the name of a task has at most {MAX_TASK_BYTES} bytes, got {len(header.task.encode())}"
            )
        check_shapes(header, check_header(header))
        self._admit(header)
        self.upload.header = header
        self.missing_bytes = header.payload_bytes
        self._digest.reset()

    def _take_piece(self, piece: Piece) -> None:
        if self.upload.header is None:
            raise RejectedError("a header must come before its payload")
        expected_bytes = min(PIECE_BYTES, self.missing_bytes)
        if len(piece) != expected_bytes:
            raise RejectedError(
                f"a piece has {PIECE_BYTES} bytes, or what is left: expected {expected_bytes}, got {len(piece)}"
            )
        self._digest.update(piece)
        self.upload.pieces.append(piece)
        self.missing_bytes -= len(piece)

    def _take_episode(self, record: episode_pb2.EpisodeRecord) -> None:
        check_name(record.stream, record.episode)
        if record.ByteSize() > MAX_EPISODE_BYTES or len(self.upload.episodes) >= MAX_EPISODES:
            raise RejectedError(
                f"an Append carries at most {MAX_EPISODES} episodes of at most {MAX_EPISODE_BYTES} bytes each"
            )
        self.upload.episodes.append(record)

    def _take_progress(self, progress: replay_service_pb2.ActorProgress) -> None:
        if self.upload.actor:
            raise RejectedError("an Append carries at most one progress")
        check_name(progress.actor, max(progress.env_steps, progress.env_failures))
        self.upload.actor = progress.actor
        self.upload.progress = ActorCounts(progress.env_steps, progress.env_failures)
