"""Pieces that pass protobuf by are laid out as protobuf lays them out, and all else is left to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.payload_message_serializer import decode, encode, message_of, parts_in
from minefleet.v1 import fragment_pb2, replay_service_pb2

KINDS: list[Any] = [replay_service_pb2.AppendRequest, replay_service_pb2.ReadResponse]
SIZES = [0, 1, 125, 126, 127, 128, 2**14 - 1, 2**14, PIECE_BYTES]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_a_piece_alone_is_encoded_as_protobuf_does_and_decoded(kind: Any, size: int) -> None:
    piece = bytes(range(256)) * (size // 256 + 1)
    message = kind()
    message.parts.add(payload=piece[:size])
    assert message_of(kind, [{"payload": piece[:size]}]) == encode(piece[:size]) == message.SerializeToString()
    assert kind.FromString(encode(piece[:size])) == message
    decoded = decode(encode(piece[:size]))
    assert decoded is not None and decoded.tobytes() == piece[:size] and list(parts_in(decoded)) == [decoded]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_more_than_a_piece_are_left_to_protobuf(kind: Any) -> None:
    header = fragment_pb2.FragmentHeader(run_id="r", payload_bytes=3)
    bundles: list[list[dict[str, Any]]] = [[{"header": header}], [{"header": header}, {"payload": b"abc"}], []]
    for parts in (*bundles, [{"payload": b"a"}] * 2):
        message = message_of(kind, parts)
        assert isinstance(message, kind) and len(message.parts) == len(parts)
        assert list(parts_in(message)) == list(message.parts)
        assert decode(message.SerializeToString()) is None


@given(st.binary(max_size=40), st.binary(max_size=8), st.integers(0, 48))
def test_what_is_decoded_is_what_protobuf_reads(piece: bytes, more: bytes, end: int) -> None:
    for data in (piece, (encode(piece) + more)[:end], b"\x0a\x82\x00\x12\x00" + more):
        decoded = decode(data)
        if decoded is not None:
            message = replay_service_pb2.ReadResponse.FromString(data)
            assert [part.payload for part in message.parts] == [decoded.tobytes()]
