"""Spaces of Gymnasium and old gym as plain data, and values between the two.

A schema is {"obs": leaves, "action": leaves}, leaves a dict from paths to {"kind", "shape", "dtype", "categories",
"low", "high"}: what `minefleet.core.schema.Schema.from_dict` reads. Dict keeps its keys, Tuple has the keys "0", "1",
...; categories count from 0 on our side, whatever the space's `start`; float64 becomes float32. Spaces are known by the
names of their classes, so that it does not matter which library, of which age, they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.errors import EnvError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Write = Callable[[Any], None]

SUPPORTED = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple")
UTF8_BYTES = 4
"""Most bytes of a character."""
TEXT_BYTES = 256
"""Longest text of a space that does not say how long its texts are, as MiniGrid's of missions."""


def schema_of(env: Any) -> dict[str, Any]:
    """Returns the schema of an environment's observations and actions.

    Raises:
        RefusedError: If a space, or a key of a Dict, has no counterpart in a schema; names the leaf.
    """
    sides = {"obs": env.observation_space, "action": env.action_space}
    return {side: dict(sorted(_leaves(space, side, ""))) for side, space in sides.items()}


def writer(space: Any, leaves: Mapping[str, Any], rows: Mapping[str, NDArray[Any]], path: str = "") -> Write:
    """Returns a function that checks an observation of `space` and writes it to its rows, one array per leaf.

    It raises `EnvError` for what does not fit the leaves. All that depends on the space alone is done here, once.
    """
    if _kind(space) in ("Dict", "Tuple"):
        return _write_all(
            [(key, writer(child, leaves, rows, join(path, name))) for key, name, child in _children(space)], path
        )
    leaf, row = leaves[path], rows[path]
    name = f"observation {path!r}" if path else "the observation"
    if leaf["kind"] == "text":
        return _write_text(row, name)
    if leaf["kind"] == "box":
        return _write_box(row, name)
    return _write_categories(space, np.array(leaf["categories"], np.int64).reshape(row.shape), row, name)


def reader(space: Any, rows: Mapping[str, NDArray[Any]], path: str = "") -> Callable[[], Any]:
    """Returns a function that turns one step's action in its rows into what `env.step` takes, without a view of them.

    Boxes are clipped to the space's bounds, since a Gaussian policy knows none.
    """
    kind = _kind(space)
    if kind in ("Dict", "Tuple"):
        parts = [(key, reader(child, rows, join(path, name))) for key, name, child in _children(space)]
        if kind == "Dict":
            return lambda: {key: read() for key, read in parts}
        return lambda: tuple(read() for _, read in parts)
    row = rows[path]
    if kind == "Box":
        low, high, dtype = space.low, space.high, space.dtype
        return lambda: np.asarray(np.clip(row.astype(dtype), low, high))
    if kind == "Discrete":
        return _read_category(space, row)
    start, shape, dtype = getattr(space, "start", 0), _shape(space), space.dtype
    return lambda: (row.reshape(shape) + start).astype(dtype)


def row_of(space: Any, batch: Any, index: int) -> Any:
    """One row of a batch of values of `space`, as a `gymnasium.vector.VectorEnv` has them."""
    if _kind(space) not in ("Dict", "Tuple") or getattr(batch, "dtype", None) == np.dtype(object):
        return batch[index]
    parts = {key: row_of(child, batch[key], index) for key, _, child in _children(space)}
    return parts if _kind(space) == "Dict" else tuple(parts.values())


def batch_of(space: Any, rows: Sequence[Any]) -> Any:
    """Inverts `row_of`."""
    if _kind(space) not in ("Dict", "Tuple"):
        return np.array(rows, space.dtype)
    parts = {key: batch_of(child, [row[key] for row in rows]) for key, _, child in _children(space)}
    return parts if _kind(space) == "Dict" else tuple(parts.values())


def _kind(space: Any) -> str:
    """The first known class that the space is one of; Text for another of strings; of an unknown space, its own."""
    names = [cls.__name__ for cls in type(space).__mro__]
    names.append(names[0].replace("Space", ""))  # Where gym is missing, crafter has a BoxSpace of its own, for example.
    known = next((name for name in names if name in SUPPORTED), names[0])
    return known if known in SUPPORTED or getattr(space, "dtype", None) != np.dtype(str) else "Text"


def _children(space: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields each child's key, its part of the path, and the child."""
    pairs = space.spaces.items() if _kind(space) == "Dict" else enumerate(space.spaces)
    return ((key, str(key), child) for key, child in pairs)


def join(path: str, name: str) -> str:
    """The path of what lies at `name` below `path`; either may be empty."""
    return f"{path}/{name}" if path and name else path or name


def _shape(space: Any) -> tuple[int, ...]:
    return tuple(space.nvec.shape if _kind(space) == "MultiDiscrete" else space.shape)


def _leaves(space: Any, side: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    place = join(side, path)
    if _kind(space) not in ("Dict", "Tuple"):
        yield path, _leaf(space, side, place)
        return
    children = list(_children(space))
    if not children:
        raise RefusedError(f"{place} is an empty {type(space).__name__}")
    for key, name, child in children:
        if (key is not name and _kind(space) == "Dict") or not name or "/" in name:
            raise RefusedError(f"{place} has the key {key!r}; keys must be non-empty strings without '/'")
        yield from _leaves(child, side, join(path, name))


def _leaf(space: Any, side: str, place: str) -> dict[str, Any]:
    kind = _kind(space)
    if kind == "Box":
        return _box(space)
    if kind == "Discrete":
        return _plain("discrete", (), "int64", categories=[space.n])
    if kind == "MultiDiscrete":
        return _plain("multi_discrete", (space.nvec.size,), "int64", categories=space.nvec.flat)
    if kind == "MultiBinary":
        count = int(np.prod(space.shape))
        return _plain("multi_discrete", (count,), "int64", categories=[2] * count)
    if kind == "Text" and side == "obs":
        return _plain("text", (_longest_bytes(space, place),), "uint8")
    raise RefusedError(f"{place} is a {type(space).__name__} space; supported are {', '.join(SUPPORTED)}")


def _plain(
    kind: str, shape: Any, dtype: str, *, categories: Any = (), low: Any = "-inf", high: Any = "inf"
) -> dict[str, Any]:
    return {
        "kind": kind,
        "shape": [int(size) for size in shape],
        "dtype": dtype,
        "categories": [int(n) for n in categories],
        "low": low,
        "high": high,
    }


def _box(space: Any) -> dict[str, Any]:
    dtype = "float32" if space.dtype == np.float64 else str(np.dtype(space.dtype))
    return _plain("box", space.shape, dtype, low=_bound(space.low), high=_bound(space.high))


def _bound(bound: NDArray[Any]) -> str | list[str]:
    """One number for all elements, or one per element; as text, since JSON has no infinity."""
    values = [str(float(x)) for x in np.unique(bound)]
    return values[0] if len(values) == 1 else [str(float(x)) for x in bound.flat]


def _longest_bytes(space: Any, place: str) -> int:
    """Bytes of the longest text: of its characters as UTF-8, of which there are any where it does not say which.

    MineRL's texts are arrays of strings; those of one string are taken.
    """
    if int(np.prod(space.shape or ())) != 1:
        raise RefusedError(f"{place} is a {type(space).__name__} space of several texts; one is supported")
    longest = getattr(space, "max_length", None) or getattr(space, "MAX_STR_LEN", None)
    if longest is None:
        return TEXT_BYTES
    characters = getattr(space, "character_set", None)
    widest = max((len(character.encode()) for character in characters), default=1) if characters else UTF8_BYTES
    return int(longest) * widest


def _write_all(parts: list[tuple[Any, Write]], path: str) -> Write:
    def write(obs: Any) -> None:
        for key, child in parts:
            try:
                part = obs[key]
            except (LookupError, TypeError) as error:
                raise EnvError(f"the observation lacks {join(path, str(key))!r}, which its space has") from error
            child(part)

    return write


def _write_box(row: NDArray[Any], name: str) -> Write:
    shape, dtype, is_float = row.shape, row.dtype, row.dtype.kind == "f"

    def write(value: Any) -> None:
        value = _fitting(value, shape, dtype, name)
        if is_float and not np.isfinite(value).all():
            raise EnvError(f"{name} must be finite, got {value}")
        row[...] = value

    return write


def _write_categories(space: Any, categories: NDArray[Any], row: NDArray[Any], name: str) -> Write:
    start, shape, dtype = getattr(space, "start", 0), row.shape, row.dtype
    named = {value: index for index, value in enumerate(getattr(space, "values", ()))}

    def write(value: Any) -> None:
        if named:
            value = named.get(str(value), -1)
        array = np.asarray(value)
        value = _fitting((array - start).reshape(shape) if array.size == row.size else array, shape, dtype, name)
        if not ((value >= 0) & (value < categories)).all():
            raise EnvError(f"{name} must count categories below {tuple(categories.ravel().tolist())}, got {value}")
        row[...] = value

    return write


def _write_text(row: NDArray[Any], name: str) -> Write:
    def write(value: Any) -> None:
        text = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        if not isinstance(text, str):
            raise EnvError(f"{name} must be a text, got a {type(value).__name__}")
        data = text.encode()
        if len(data) > row.size:
            raise EnvError(f"{name} must be a text of at most {row.size} bytes, got {len(data)}")
        row[: len(data)] = np.frombuffer(data, np.uint8)
        row[len(data) :] = 0

    return write


def _fitting(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """The value as an array of this shape and dtype."""
    array = np.asarray(value)
    if array.shape != shape:
        raise EnvError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvError(f"{name} must be {dtype}, got {array.dtype}")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _read_category(space: Any, row: NDArray[Any]) -> Callable[[], Any]:
    if hasattr(space, "values"):
        return lambda: str(space.values[int(row)])
    start = int(getattr(space, "start", 0))
    return lambda: int(row) + start
