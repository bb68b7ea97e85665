"""The addresses that roles serve at: of this machine only, for others to find, and free again."""

import errno
import ipaddress
import socket
import time

from minefleet.launch.ports import listen_error

EVERYWHERE = ("0.0.0.0", "[::]")
"""Hosts that stand for every address of this one."""
BIND_PATIENCE_S = 5.0
"""Seconds for which a role waits for a port in use: a predecessor that was killed may hold it a little longer."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; names that do not resolve are left to the bind."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except OSError:
        return True
    return all(ipaddress.ip_address(each[4][0]).is_loopback for each in found)


def findable(address: str) -> str:
    """`host:port` for others to find: this host's own address where it stands for all of them."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostbyname(socket.gethostname())}:{port}" if host in EVERYWHERE else address


def await_free_port(address: str) -> None:
    """Returns once nobody listens at `host:port`, or after `BIND_PATIENCE_S`; at once if another error forbids it."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + BIND_PATIENCE_S
    while time.monotonic() < until:
        error = listen_error(host, int(port))
        if error is None or error.errno != errno.EADDRINUSE:
            return
        time.sleep(0.1)
