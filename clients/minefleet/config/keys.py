"""The keys of the configuration: which there are, of what type, and the nearest to an unknown one."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from minefleet.config.other_library_keys import OTHER_NAMES
from minefleet.config.root_config import FleetConfig
from minefleet.core.errors import ConfigError

MAX_HINTS = 5


def check_keys(data: Mapping[str, Any], source: str) -> None:
    """Refuses keys that the tree does not have, and sections that are none.

    Raises:
        ConfigError: Names the key in full, and the nearest one.
    """
    _check_section(data, FleetConfig, "", source)


def all_keys(cls: type = FleetConfig, prefix: str = "") -> Iterator[str]:
    """Every key in full, sections included."""
    for name, kind in fields_of(cls).items():
        yield f"{prefix}{name}"
        section = _section(kind)
        if section is not None:
            yield from all_keys(section, f"{prefix}{name}.")


def _check_section(data: Any, cls: type, prefix: str, source: str) -> None:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} ({source}) must be a section of keys, got {data!r}")
    fields = fields_of(cls)
    for name, value in data.items():
        if name not in fields:
            raise unknown_key(f"{prefix}{name}", source)
        section = _section(fields[name])
        if section is not None:
            for entry in entries_of(value) if section is not fields[name] else [value]:
                _check_section(entry, section, f"{prefix}{name}.", source)


def unknown_key(key: str, source: str) -> ConfigError:
    """The error of a key that the tree does not have: names what others call so, or the nearest key."""
    instead = OTHER_NAMES.get(key) or OTHER_NAMES.get(key.rpartition(".")[2])
    return ConfigError(
        f"there is no {key} ({source}): {instead}" if instead else f"unknown key {key} ({source}); {_hint(key)}"
    )


def whole_numbers(data: Any, kind: Any = FleetConfig) -> Any:
    """The same plain data, with integers in the place of floats such as 1e6 where the declared type is an integer."""
    if kind is int and isinstance(data, float) and data.is_integer():
        return int(data)
    if isinstance(data, list):
        return (
            [whole_numbers(entry, *typing.get_args(kind)[:1]) for entry in data]
            if typing.get_origin(kind) is list
            else data
        )
    section = _section(kind)
    if section is None or not isinstance(data, dict):
        return data
    fields = fields_of(section)
    return {name: whole_numbers(value, fields.get(name, kind)) for name, value in data.items()}


def _section(kind: Any) -> type | None:
    """The section that a key of this type holds, or each entry of its list; None where it holds a value."""
    entry = typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind
    return cast(type, entry) if dataclasses.is_dataclass(entry) else None


def entries_of(value: Any) -> list[Any]:
    """The given entries of a list: all of them, or some by number. Keys without a number are the first one's."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    return list(by_number(value).values())


def by_number(given: dict[Any, Any]) -> dict[int, Any]:
    """Entries of a list by their number; keys without one are the first entry's."""
    first = {name: value for name, value in given.items() if not isinstance(name, int)}
    numbered = {name: value for name, value in given.items() if isinstance(name, int)}
    return {0: first, **numbered} if first else numbered


def _hint(key: str) -> str:
    """Names the nearest key: a similar name in the same section, else anywhere; else some of what the section has."""
    section, _, name = key.rpartition(".")
    keys = {other: other.rpartition(".") for other in all_keys()}
    siblings = [last for before, _, last in keys.values() if before == section]
    near = difflib.get_close_matches(name, siblings, 1)
    if near:
        return f"the nearest is {'.'.join(filter(None, (section, near[0])))}"
    far = difflib.get_close_matches(name, {last for *_, last in keys.values()}, 1, cutoff=0.75)
    places = [other for other, (*_, last) in keys.items() if last in far]
    if places:
        return f"the nearest is {' or '.join(places)}"
    nearest = difflib.get_close_matches(name, siblings, MAX_HINTS, cutoff=0.0)
    return f"{section or 'the top'} has {', '.join(nearest) or 'no keys'}{', ...' * (len(siblings) > len(nearest))}"


def kind_of(key: str) -> Any:
    """The declared type of a key, or None where there is none."""
    kind: Any = FleetConfig
    for name in key.split("."):
        kind = fields_of(kind).get(name) if dataclasses.is_dataclass(kind) else None
    return kind


def wanted(kind: Any) -> str:
    """A declared type in words, as in "a number or null"."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(wanted(argument) for argument in arguments)
    if origin is list:
        return f"a list, each of it {wanted(arguments[0])}"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
    return words.get(origin or kind, "null")


def fields_of(cls: Any) -> dict[str, Any]:
    """The keys of a section, each with its declared type."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}
