"""Hand-made messages are protobuf's, both ways."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.tensor_message_serializer import Piece, cut, decode, encode
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import weights_pb2

MESSAGES = (pb.PublishRequest, pb.FetchResponse)

digests = st.text("0123456789abcdef", min_size=32, max_size=32)
pieces = st.builds(
    Piece,
    digest=digests,
    offset=st.one_of(st.integers(0, 300), st.integers(0, 2**40)),
    data=st.one_of(st.binary(min_size=1, max_size=300), st.just(b"\x12" * 20_000)).map(memoryview),
)


def as_protobuf(piece: Piece) -> weights_pb2.TensorPiece:
    return weights_pb2.TensorPiece(digest=piece.digest, offset=piece.offset, data=bytes(piece.data))


@given(st.lists(pieces, max_size=4))
@pytest.mark.parametrize("message", MESSAGES)
def test_tensor_pieces_are_encoded_as_protobuf_serializes_them(
    message: type[pb.PublishRequest | pb.FetchResponse], sent: list[Piece]
) -> None:
    theirs = message(pieces=map(as_protobuf, sent))
    assert encode(sent) == theirs.SerializeToString()
    assert message.FromString(encode(sent)) == theirs


@given(st.lists(pieces, max_size=4))
@pytest.mark.parametrize("message", MESSAGES)
def test_tensor_pieces_that_protobuf_serialized_are_decoded(
    message: type[pb.PublishRequest | pb.FetchResponse], sent: list[Piece]
) -> None:
    assert decode(message(pieces=map(as_protobuf, sent)).SerializeToString()) == sent


@given(st.lists(pieces, min_size=1, max_size=3), st.data())
def test_spoilt_messages_are_decoded_as_protobuf_decodes_them_or_left_to_it(
    sent: list[Piece], data: st.DataObject
) -> None:
    message = bytearray(encode(sent))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    message = message[: data.draw(st.integers(0, len(message)))]
    decoded = decode(bytes(message))
    if decoded is not None:
        assert [as_protobuf(piece) for piece in decoded] == list(pb.FetchResponse.FromString(bytes(message)).pieces)


@pytest.mark.parametrize(
    "message",
    [
        pb.PublishRequest(header=pb.PublishHeader(run_id="run")),
        pb.PublishRequest(header=pb.PublishHeader(), pieces=[weights_pb2.TensorPiece(digest="0" * 32, data=b"x")]),
        pb.PublishRequest(pieces=[weights_pb2.TensorPiece(digest="../..", data=b"x")]),
        pb.PublishRequest(pieces=[weights_pb2.TensorPiece(digest="0" * 32)]),
    ],
    ids=["a header", "a header with pieces", "a malformed digest", "no bytes"],
)
def test_messages_of_another_layout_are_left_to_protobuf(message: pb.PublishRequest) -> None:
    assert decode(message.SerializeToString()) is None


def test_fields_in_another_order_are_left_to_protobuf() -> None:
    data_first = b"\x1a\x01x" + b"\x0a\x20" + b"0" * 32
    message = b"\x12" + bytes([len(data_first)]) + data_first
    assert pb.FetchResponse.FromString(message).pieces[0].data == b"x"
    assert decode(message) is None


def test_a_length_beyond_the_message_is_left_to_protobuf_which_refuses_it() -> None:
    message = encode([Piece("0" * 32, 0, memoryview(b"xyz"))])[:-1]
    assert decode(message) is None
    with pytest.raises(DecodeError):
        pb.PublishRequest.FromString(message)


@given(st.integers(0, 3 * PIECE_BYTES), st.integers(0, 3 * PIECE_BYTES))
def test_a_tensor_is_cut_into_pieces_that_make_it_up_from_any_offset_on(size: int, start: int) -> None:
    tensor = memoryview(bytes(size))
    end = start
    for piece in cut("0" * 32, tensor, start):
        assert piece.offset == end
        assert 1 <= len(piece.data) <= PIECE_BYTES
        end += len(piece.data)
    assert end == max(start, size)
