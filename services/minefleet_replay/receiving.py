"""Reads one Append: sizes are checked before anything is kept, and the whole before anything is stored."""

from collections.abc import Callable, Iterable

from minefleet.codec import check_header, checksum
from minefleet.errors import RejectedError
from minefleet.rpc import PIECE_BYTES
from minefleet.v1 import episode_pb2, fragment_pb2, replay_service_pb2
from minefleet_replay.intake import Upload
from minefleet_replay.progress import Counts

MAX_PAYLOAD_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 2**20
MAX_EPISODES = 10_000
MAX_EPISODE_BYTES = 64 * 2**10
MAX_NAME_CHARACTERS = 200
MAX_NUMBER = 2**63 - 1


def receive(
    requests: Iterable[replay_service_pb2.AppendRequest], admit: Callable[[fragment_pb2.FragmentHeader], None]
) -> Upload:
    """Reads an upload to its end.

    Args:
        requests: Its messages, in order.
        admit: Told the header before any of the payload is taken; raises to refuse it.

    Raises:
        RejectedError: If the messages do not make one fragment and episodes, or the payload fails its checksum.
    """
    upload, pieces = Upload(), list[bytes]()
    for request in requests:
        match request.WhichOneof("part"):
            case "header":
                _take_header(upload, request.header, admit)
            case "payload":
                _take_piece(upload, pieces, request.payload)
            case "episode":
                _take_episode(upload, request.episode)
            case "progress":
                _take_progress(upload, request.progress)
            case part:
                raise RejectedError(f"an Append carries no {part or 'empty message'}")
    upload.payload = b"".join(pieces)
    if upload.header is not None and checksum(upload.payload) != upload.header.checksum:
        raise RejectedError(
            f"the payload of {len(upload.payload)} bytes does not match its header: {upload.header.payload_bytes} "
            f"bytes with checksum {upload.header.checksum:016x}"
        )
    return upload


def check_name(stream: str, number: int) -> None:
    """Rejects names that are empty or too long, and numbers that are too large."""
    if not 0 < len(stream) <= MAX_NAME_CHARACTERS or number > MAX_NUMBER:
        raise RejectedError(
            f"a name is a stream of 1 to {MAX_NAME_CHARACTERS} characters and a number <= {MAX_NUMBER}, got "
            f"{len(stream)} characters and {number}"
        )


def _take_header(
    upload: Upload, header: fragment_pb2.FragmentHeader, admit: Callable[[fragment_pb2.FragmentHeader], None]
) -> None:
    if upload.header is not None:
        raise RejectedError("an Append carries at most one header")
    check_name(header.name.stream, max(header.name.sequence, header.newest_version))
    if header.payload_bytes > MAX_PAYLOAD_BYTES or header.ByteSize() > MAX_HEADER_BYTES:
        raise RejectedError(
            f"a fragment has at most {MAX_PAYLOAD_BYTES} bytes and {MAX_HEADER_BYTES} of header, got "
            f"{header.payload_bytes} and {header.ByteSize()}"
        )
    if any(spec.packed_bytes < 0 for spec in header.tensors):
        raise RejectedError("a tensor has a negative number of bytes")
    check_header(header)
    admit(header)
    upload.header = header


def _take_piece(upload: Upload, pieces: list[bytes], piece: bytes) -> None:
    if upload.header is None:
        raise RejectedError("the header must come before the payload")
    received_bytes = sum(map(len, pieces))
    if len(piece) > PIECE_BYTES or received_bytes + len(piece) > upload.header.payload_bytes:
        raise RejectedError(
            f"pieces have at most {PIECE_BYTES} bytes and together the header's {upload.header.payload_bytes}, got "
            f"{len(piece)} after {received_bytes}"
        )
    pieces.append(piece)


def _take_episode(upload: Upload, record: episode_pb2.EpisodeRecord) -> None:
    check_name(record.stream, record.episode)
    if record.ByteSize() > MAX_EPISODE_BYTES or len(upload.episodes) >= MAX_EPISODES:
        raise RejectedError(
            f"an Append carries at most {MAX_EPISODES} episodes of at most {MAX_EPISODE_BYTES} bytes each"
        )
    upload.episodes.append(record)


def _take_progress(upload: Upload, progress: replay_service_pb2.ActorProgress) -> None:
    if upload.actor:
        raise RejectedError("an Append carries at most one progress")
    check_name(progress.actor, max(progress.env_steps, progress.env_failures))
    upload.actor, upload.progress = progress.actor, Counts(progress.env_steps, progress.env_failures)
