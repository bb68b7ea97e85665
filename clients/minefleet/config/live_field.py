"""Marks the keys that may change while a run goes: `minefleet set`."""

from dataclasses import field
from typing import TypeVar, cast

LIVE = "live"
"""In the metadata of a field."""

Value = TypeVar("Value")


def live(default: Value) -> Value:
    """The default of a key that may change while a run goes, in the place where a field has its own."""
    if isinstance(default, list | dict):
        return cast(Value, field(default_factory=default.copy, metadata={LIVE: True}))
    return field(default=default, metadata={LIVE: True})
