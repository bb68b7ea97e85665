"""Shared code of all clients: channels, the handshake, and pieces of large messages."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import grpc

from minefleet.rpc.credentials import NOTHING, Credentials
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc

WIRE_VERSION = 6
"""Roles with another wire version refuse each other. It rises where an older one would not do what a newer one asks."""

PIECE_BYTES = 2**20
"""Size of the pieces that fragments and tensors travel in: the fastest on loopback, and small against flow control."""

CALL_TIMEOUT_S = 10.0
"""Deadline of a call that answers at once."""

MESSAGE_BYTES = 16 * 2**20

PING_TIMEOUT_MS = 15_000
"""An answer to a ping waits behind uploads in the sender's buffers: megabytes, which take seconds on a slow line."""

# Each end announces the largest frame that it takes: a piece with its head fits into one. The default of
# 16 KiB would cut it into 64.
FRAMES = (("grpc.http2.max_frame_size", 2 * PIECE_BYTES),)

# Both ends must agree on keepalive: a client that pings faster than the server allows is cut off, and only
# ping_timeout_ms notices a peer that hangs.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CLIENT_OPTIONS = (
    *KEEPALIVE,
    *FRAMES,
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)

Part = TypeVar("Part")


def connect(address: str, peer: str = "", credentials: Credentials = NOTHING, *, in_turn: bool = False) -> grpc.Channel:
    """Opens a channel to `host:port` with our options, to a role that its certificate must say. Nothing is sent yet.

    Where the name stands for several addresses, calls go to one of them or, `in_turn`, to each in turn.
    """
    policy = (("grpc.lb_policy_name", "round_robin"),) if in_turn else ()
    return credentials.channel(address, peer, (*CLIENT_OPTIONS, *policy))


def pieces(payload: bytes) -> Iterator[bytes]:
    """Cuts a payload into pieces of at most `PIECE_BYTES`; an empty payload has none."""
    if 0 < len(payload) <= PIECE_BYTES:
        yield payload
        return
    view = memoryview(payload)
    for start in range(0, len(view), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])


def bundled(parts: Iterable[tuple[Part, int]]) -> Iterator[list[Part]]:
    """Gathers parts into messages: each takes parts until their bytes reach `PIECE_BYTES`.

    Args:
        parts: Each with its bytes, at most `PIECE_BYTES`.
    """
    message: list[Part] = []
    message_bytes = 0
    for part, part_bytes in parts:
        message.append(part)
        message_bytes += part_bytes
        if message_bytes >= PIECE_BYTES:
            yield message
            message, message_bytes = [], 0
    if message:
        yield message


def shake_hands(
    channel: grpc.Channel, caller: status_service_pb2.Identity | None, timeout_s: float = CALL_TIMEOUT_S
) -> status_service_pb2.DescribeResponse:
    """Introduces the caller to the server, which refuses it when the two could not work together.

    None only looks, and is never refused.

    Raises:
        ContractError: If wire version, schema, architecture or a configuration key differs; says which.
    """
    request = status_service_pb2.DescribeRequest(caller=caller)
    with translated():
        return status_service_pb2_grpc.StatusServiceStub(channel).Describe(request, timeout=timeout_s)
