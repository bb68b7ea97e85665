"""Pieces of tensors on the wire, written and read without the copies that protobuf makes of them.

A PublishRequest and a FetchResponse carry pieces under the same number, so one layout serves both: that of protobuf's
own serializers, fields in the order of their numbers and zeros left out. What is laid out in another way, or carries
no pieces, is left to protobuf; the .proto remains the contract.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import grpc

from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.protobuf_by_hand import number_of, or_encoded, varint
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import weights_pb2


class Piece(NamedTuple):
    """A TensorPiece that shares its bytes with the message it came in."""

    digest: str
    offset: int
    data: memoryview


AnyPiece: TypeAlias = Piece | weights_pb2.TensorPiece

PublishCall: TypeAlias = "grpc.StreamUnaryMultiCallable[pb.PublishRequest | bytes, pb.PublishResponse]"
FetchCall: TypeAlias = "grpc.UnaryStreamMultiCallable[pb.FetchRequest, pb.FetchResponse | list[Piece]]"
Parsed = TypeVar("Parsed", pb.PublishRequest, pb.FetchResponse)

SERVICE = "minefleet.v1.ParametersService"
PUBLISH_PATH = f"/{SERVICE}/Publish"
FETCH_PATH = f"/{SERVICE}/Fetch"

_PIECE, _DIGEST, _OFFSET, _DATA = b"\x12", b"\x0a", b"\x10", b"\x1a"
_HEAD = re.compile(
    rb"\x12([\x80-\xff]{0,3}[\0-\x7f])"
    rb"\x0a\x20([0-9a-f]{32})"
    rb"(?:\x10([\x80-\xff]{0,7}[\0-\x7f]))?"
    rb"\x1a([\x80-\xff]{0,3}[\0-\x7f])"
)


def cut(digest: str, data: memoryview, start: int = 0) -> Iterator[Piece]:
    """Cuts a tensor's bytes into pieces, from an offset on."""
    for offset in range(start, len(data), PIECE_BYTES):
        yield Piece(digest, offset, data[offset : offset + PIECE_BYTES])


def encode(pieces: Iterable[Piece]) -> bytes:
    """Returns the PublishRequest, or FetchResponse, that carries pieces of at least one byte each."""
    return b"".join(part for piece in pieces for part in (_head(piece), piece.data))


def decode(message: bytes) -> list[Piece] | None:
    """Returns the pieces that a message carries; None if protobuf has to read it."""
    pieces, end, view = list[Piece](), 0, memoryview(message)
    while end < len(message):
        matched = _HEAD.match(message, end)
        if matched is None:
            return None
        outer, digest, offset, inner = matched.groups(b"\0")
        start, end = matched.end(), matched.end() + number_of(inner)
        if matched.end(1) + number_of(outer) != end or end > len(message):
            return None
        pieces.append(Piece(digest.decode(), number_of(offset), view[start:end]))
    return pieces


def pieces_in(message: "list[Piece] | pb.PublishRequest | pb.FetchResponse") -> Sequence[AnyPiece]:
    """Returns the pieces that a message carries."""
    return message if isinstance(message, list) else message.pieces


def publish_call(channel: grpc.Channel) -> PublishCall:
    """Publish of ParametersService, whose requests may be encoded pieces."""
    return channel.stream_unary(PUBLISH_PATH, or_encoded(pb.PublishRequest), pb.PublishResponse.FromString)


def fetch_call(channel: grpc.Channel) -> FetchCall:
    """Fetch of ParametersService, whose responses may be lists of pieces."""
    return channel.unary_stream(FETCH_PATH, pb.FetchRequest.SerializeToString, _or_pieces(pb.FetchResponse))


def transfer_handlers(publish: Any, fetch: Any) -> dict[str, Any]:
    """The server's side: the requests of Publish may be lists of pieces, the responses of Fetch encoded pieces."""
    return {
        "Publish": grpc.stream_unary_rpc_method_handler(
            publish, _or_pieces(pb.PublishRequest), pb.PublishResponse.SerializeToString
        ),
        "Fetch": grpc.unary_stream_rpc_method_handler(fetch, pb.FetchRequest.FromString, or_encoded(pb.FetchResponse)),
    }


def _or_pieces(kind: type[Parsed]) -> Callable[[bytes], list[Piece] | Parsed]:
    # No pieces at all: let protobuf say what it is.
    return lambda message: decode(message) or kind.FromString(message)


def _head(piece: Piece) -> bytes:
    name, size = piece.digest.encode(), len(piece.data)
    offset = _OFFSET + varint(piece.offset) if piece.offset else b""
    fields = _DIGEST + varint(len(name)) + name + offset + _DATA + varint(size)
    return _PIECE + varint(len(fields) + size) + fields
