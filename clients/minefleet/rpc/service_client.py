"""The part of a client that replay's and that of parameters share: a channel, the handshake, and repeated calls."""

import threading
from collections.abc import Callable
from typing import TypeVar

from minefleet.core.errors import DeadlineError, UnavailableError
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import NOTHING, Credentials
from minefleet.rpc.handshake import shake_hands
from minefleet.rpc.retrier import Retrier
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import status_service_pb2

Result = TypeVar("Result")


class ServiceClient:
    """A connection to one service. Nothing is sent before the first call.

    Args:
        peer: The service: "replay" or "parameters".
        address: `host:port`.
        identity: Introduces this process before the first call, and again after the service was away; it refuses one
            that it could not work with. None skips that, for tools that only look.
        credentials: What to show, and to ask for.
        stopping: Set when this process is asked to stop; every wait then ends in `StoppedError`.
        patience_s: Give up on an unanswered call after so long, seconds; None never.
        report: Called with a wait's reason when it starts, and with None when it is over.
    """

    def __init__(
        self,
        peer: str,
        address: str,
        *,
        identity: status_service_pb2.Identity | None = None,
        credentials: Credentials = NOTHING,
        stopping: threading.Event | None = None,
        patience_s: float | None = None,
        report: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._identity = identity
        self._is_introduced = identity is None
        self._stopping = stopping or threading.Event()
        self._channel = connect(address, peer, credentials)
        self._retry = Retrier(
            peer=f"{peer} at {address}", stopping=self._stopping, patience_s=patience_s, report=report
        )

    def describe(self) -> status_service_pb2.DescribeResponse:
        """Fetches the identity and status of the service."""
        return self._call(lambda: shake_hands(self._channel, self._identity))

    def close(self) -> None:
        """Closes the channel; calls in flight fail."""
        self._channel.close()

    def _call(self, attempt: Callable[[], Result]) -> Result:
        """Repeats `attempt` until the service answers."""

        def once() -> Result:
            if not self._is_introduced:
                shake_hands(self._channel, self._identity)
                self._is_introduced = True
            try:
                with translated():
                    return attempt()
            except (UnavailableError, DeadlineError):
                self._introduce_again()  # Another process may answer next time.
                raise

        return self._retry(once)

    def _introduce_again(self) -> None:
        self._is_introduced = self._identity is None
