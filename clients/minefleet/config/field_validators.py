"""Checks that name the key and the value they reject. Used by `__post_init__` of the config dataclasses."""

import math
from collections.abc import Sequence
from itertools import pairwise

from minefleet.core.errors import ConfigError

MAX_DIGITS = 5
"""Of a port."""
LIMIT = 2**63
"""Integers travel and are stored in 64 bits, with a sign."""


def at_least(key: str, value: float, minimum: float) -> None:
    """Rejects values below `minimum`, what is not finite, and integers beyond 64 bits."""
    if not minimum <= value < math.inf:
        raise ConfigError(f"{key} must be >= {minimum}{_finite(value)}, got {value}")
    if isinstance(value, int) and value >= LIMIT:
        raise ConfigError(f"{key} must be < 2**63, got {value}")


def finite(key: str, value: float) -> None:
    """Rejects NaN and infinities."""
    if not math.isfinite(value):
        raise ConfigError(f"{key} must be finite, got {value}")


def above(key: str, value: float, minimum: float) -> None:
    """Rejects values that are not above `minimum`, and what is not finite."""
    if not minimum < value < math.inf:
        raise ConfigError(f"{key} must be > {minimum}{_finite(value)}, got {value}")


def whole_or_share(key: str, value: float) -> None:
    """Rejects what is neither a whole number nor a share of one."""
    at_least(key, value, 0)
    if value > 1 and value != int(value):
        raise ConfigError(f"{key} must be a whole number or at most 1, got {value}")


def within(key: str, value: float, low: float, high: float) -> None:
    """Rejects values outside [low, high]."""
    if not low <= value <= high:
        raise ConfigError(f"{key} must lie in [{low}, {high}], got {value}")


def one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Rejects values that are none of `choices`."""
    if value not in choices:
        raise ConfigError(f"{key} must be one of {', '.join(choices)}, got {value!r}")


def divides(key: str, value: int, divisor_key: str, divisor: int) -> None:
    """Rejects values that `divisor` does not divide."""
    if value % divisor:
        raise ConfigError(f"{key} must be a multiple of {divisor_key} = {divisor}, got {value}")


def host_port(key: str, value: str) -> tuple[str, int]:
    """The host, brackets included, and the port of an address; rejects what is none."""
    host, _, port = value.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and len(port) <= MAX_DIGITS and int(port) < 2**16):
        raise ConfigError(f"{key} must be host:port, got {value!r}")
    return host, int(port)


def points(key: str, values: Sequence[Sequence[float]]) -> None:
    """Rejects what is not a list of pairs of a share in [0, 1], rising, and a factor >= 0."""
    if not all(len(point) == 2 and 0 <= point[0] <= 1 and 0 <= point[1] < math.inf for point in values):
        raise ConfigError(f"{key} must be points [share of the run in [0, 1], factor >= 0], got {values}")
    shares = [share for share, _ in values]
    if any(later <= earlier for earlier, later in pairwise(shares)):
        raise ConfigError(f"{key} must have rising shares of the run, got {shares}")


def _finite(value: float) -> str:
    return "" if math.isfinite(value) else " and finite"
