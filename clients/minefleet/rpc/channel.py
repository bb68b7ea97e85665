"""Opens gRPC channels with the options that both ends must agree on."""

import grpc

from minefleet.rpc.credentials import NOTHING, Credentials
from minefleet.rpc.message_pieces import PIECE_BYTES

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


def connect(address: str, peer: str = "", credentials: Credentials = NOTHING, *, in_turn: bool = False) -> grpc.Channel:
    """Opens a channel to `host:port` with our options, to a role that its certificate must say. Nothing is sent yet.

    Where the name stands for several addresses, calls go to one of them or, `in_turn`, to each in turn.
    """
    policy = (("grpc.lb_policy_name", "round_robin"),) if in_turn else ()
    return credentials.channel(address, peer, (*CLIENT_OPTIONS, *policy))
