"""Waits until a port is free again."""

import errno
import time

from minefleet.launch.ports import listen_error

BIND_PATIENCE_S = 5.0
"""Seconds for which a role waits for a port in use: a predecessor that was killed may hold it a little longer."""


def await_free_port(address: str) -> None:
    """Returns once nobody listens at `host:port`, or after `BIND_PATIENCE_S`; at once if another error forbids it."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + BIND_PATIENCE_S
    while time.monotonic() < until:
        error = listen_error(host, int(port))
        if error is None or error.errno != errno.EADDRINUSE:
            return
        time.sleep(0.1)
