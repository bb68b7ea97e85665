"""Distinguishes the processes of one role: by a number, or by the name of the host that each has for itself."""

import argparse
import socket
import zlib

HOST = "host"
HELP = f"tells actors and shards of replay apart; {HOST}: by this host's name (default: 0)"


def read_index(text: str) -> str:
    """Reads an index from the command line.

    Raises:
        argparse.ArgumentTypeError: If it is neither a number nor "host".
    """
    if text != HOST and not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a number or {HOST!r}, got {text!r}")
    return text


def label_of(index: str) -> str:
    """The suffix after the role in the process's name."""
    return socket.gethostname() if index == HOST else index


def number_of(index: str) -> int:
    """The number that goes into seeds."""
    return zlib.crc32(socket.gethostname().encode()) if index == HOST else int(index)
