"""Shared code of all clients: channels, the handshake, pieces, and retries by name.

A retry is safe because each repeated call carries a name (a fragment, a lease, a version) under which the peer knows
it. gRPC's own retries are not used: they silently leave out messages above 256 KiB.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from minefleet.core.errors import DeadlineError, FleetError, OverloadedError, UnavailableError
from minefleet.rpc.credentials import NOTHING, Credentials
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc

logger = logging.getLogger(__name__)

WIRE_VERSION = 6
"""Roles with another wire version refuse each other. It rises where an older one would not do what a newer one asks."""

PIECE_BYTES = 2**20
"""Size of the pieces that fragments and tensors travel in: the fastest on loopback, and small against flow control."""

CALL_TIMEOUT_S = 10.0
"""Deadline of a call that answers at once."""

MESSAGE_BYTES = 16 * 2**20
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0

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
Result = TypeVar("Result")


class StoppedError(FleetError):
    """This process was asked to stop while it waited for a peer."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrier:
    """Repeats calls to one peer until they are answered, the patience ends, or this process is asked to stop."""

    peer: str
    """Named in logs and errors, for example "replay at 127.0.0.1:4001"."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when this process is asked to stop; ends every wait at once."""
    patience_s: float | None = None
    """Give up after so long, seconds; None never."""
    report: Callable[[str | None], None] = lambda _: None
    """Called with a wait's reason when it starts, and with None when it is over."""

    def __call__(self, attempt: Callable[[], Result]) -> Result:
        """Calls `attempt` until it returns. Waits between attempts double up to `MAX_DELAY_S`, with jitter.

        Raises:
            StoppedError: If `stopping` was set while waiting.
            FleetError: What `attempt` raised last, when the patience ends or repeating cannot help.
        """
        began, delay, waiting = time.monotonic(), FIRST_DELAY_S, False
        while True:
            try:
                result = attempt()
            except (UnavailableError, DeadlineError, OverloadedError) as error:
                if self.patience_s is not None and time.monotonic() - began > self.patience_s:
                    raise
                waiting = waiting or self._report(error)
                hint = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
                if self.stopping.wait(max(hint, delay * random.uniform(0.5, 1.0))):
                    raise StoppedError(f"stopped while waiting for {self.peer}") from error
                delay = min(2 * delay, MAX_DELAY_S)
            else:
                if waiting:
                    logger.info("%s answers again", self.peer)
                    self.report(None)
                return result

    def _report(self, error: FleetError) -> bool:
        logger.info("waiting for %s: %s", self.peer, error)
        self.report(f"waiting for {self.peer}")
        return True
