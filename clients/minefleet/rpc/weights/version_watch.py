"""One watch of parameters, opened anew whenever it ends."""

import threading
from collections.abc import Callable
from typing import Any

from minefleet.core.errors import DeadlineError, FleetError, UnavailableError
from minefleet.rpc.retrier import StoppedError
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import parameters_service_pb2


class Watch:
    """A watch that blocks in `read`, and that a stop can end.

    Args:
        open_call: Opens the server stream.
        stopping: Set when this process is asked to stop.
    """

    def __init__(self, open_call: Callable[[], Any], stopping: threading.Event) -> None:
        self._open_call = open_call
        self._stopping = stopping
        self._call: Any = None

    def read(self) -> parameters_service_pb2.WatchResponse | None:
        """Waits for the next announcement; None when the watch has reached its deadline."""
        call = self._call
        if call is None:
            call = self._call = self._open_call()
        try:
            if self._stopping.is_set():
                raise StoppedError("stopped while watching parameters")
            with translated():
                response: parameters_service_pb2.WatchResponse | None = next(call, None)
        except DeadlineError:
            self._call = None
            return None
        except FleetError as error:
            self.hang_up()
            if self._stopping.is_set():  # It was this process that ended the call.
                raise StoppedError("stopped while watching parameters") from error
            raise
        if response is None:
            self._call = None
            raise UnavailableError("parameters ended a watch")
        return response

    def hang_up_when_stopped(self) -> None:
        """Ends a read that blocks: it cannot wait for `stopping` itself.

        It looks at `stopping` after it has opened a call, so one of the two sees the other.
        """
        self._stopping.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """Ends the open call, if any."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
