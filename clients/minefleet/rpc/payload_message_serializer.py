"""Messages that carry one piece of a payload and nothing else, written and read without protobuf's copies of it.

Large payloads travel in pieces of a MiB, nearly all of them alone in their message (`message_pieces.bundled`). An
AppendRequest and a ReadResponse have one layout then: a part, and in it the piece. What is laid out in another way, or
carries more, is left to protobuf; the .proto remains the contract.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc

from minefleet.rpc.protobuf_by_hand import number_of, or_encoded, varint
from minefleet.v1 import replay_service_pb2 as pb

AppendCall: TypeAlias = "grpc.StreamUnaryMultiCallable[pb.AppendRequest | bytes, pb.AppendResponse]"
ReadCall: TypeAlias = "grpc.UnaryStreamMultiCallable[pb.ReadRequest, pb.ReadResponse | memoryview]"
Message = TypeVar("Message", pb.AppendRequest, pb.ReadResponse)

SERVICE = "minefleet.v1.ReplayService"
PAYLOAD = "payload"
"""The field of a part that is a piece."""

_PART, _PAYLOAD = b"\x0a", b"\x12"
_HEAD = re.compile(rb"\x0a([\x80-\xff]{0,3}[\0-\x7f])\x12([\x80-\xff]{0,3}[\0-\x7f])")


def encode(piece: bytes) -> bytes:
    """Returns the AppendRequest, or ReadResponse, that carries a piece alone."""
    inner = _PAYLOAD + varint(len(piece))
    return b"".join((_PART, varint(len(inner) + len(piece)), inner, piece))


def decode(message: bytes) -> memoryview | None:
    """Returns the piece that a message carries alone; None if protobuf has to read it."""
    head = _HEAD.match(message)
    if head is None:
        return None
    outer, inner = map(number_of, head.groups())
    is_all = head.end(1) + outer == head.end() + inner == len(message)
    return memoryview(message)[head.end() :] if is_all else None


def message_of(kind: type[Message], parts: Sequence[Mapping[str, Any]]) -> Message | bytes:
    """The message that carries these parts, each by its field; encoded if that is one piece."""
    if len(parts) == 1 and PAYLOAD in parts[0]:
        return encode(parts[0][PAYLOAD])
    message = kind()
    for part in parts:
        message.parts.add(**part)
    return message


def parts_in(message: "pb.AppendRequest | pb.ReadResponse | memoryview") -> Iterable[Any]:
    """The parts that a message carries: protobuf's, or a piece."""
    return (message,) if isinstance(message, memoryview) else message.parts


def append_call(channel: grpc.Channel) -> AppendCall:
    """Append of ReplayService, whose requests may be encoded."""
    return channel.stream_unary(f"/{SERVICE}/Append", or_encoded(pb.AppendRequest), pb.AppendResponse.FromString)


def read_call(channel: grpc.Channel) -> ReadCall:
    """Read of ReplayService, whose responses may be pieces."""
    return channel.unary_stream(f"/{SERVICE}/Read", pb.ReadRequest.SerializeToString, _or_piece(pb.ReadResponse))


def transfer_handlers(append: Any, read: Any) -> dict[str, Any]:
    """The server's side: the requests of Append may be pieces, the responses of Read encoded."""
    return {
        "Append": grpc.stream_unary_rpc_method_handler(
            append, _or_piece(pb.AppendRequest), pb.AppendResponse.SerializeToString
        ),
        "Read": grpc.unary_stream_rpc_method_handler(read, pb.ReadRequest.FromString, or_encoded(pb.ReadResponse)),
    }


def _or_piece(kind: type[Message]) -> Callable[[bytes], Message | memoryview]:
    def parse(message: bytes) -> Message | memoryview:
        piece = decode(message)
        return kind.FromString(message) if piece is None else piece

    return parse
