"""Tells whether an address is reached from this machine only, and how others find it."""

import ipaddress
import socket

EVERYWHERE = ("0.0.0.0", "[::]")
"""Hosts that stand for every address of this one."""


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
