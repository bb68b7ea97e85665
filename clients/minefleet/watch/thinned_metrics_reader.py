"""Reads curves out of `metrics.jsonl` without reading all of it.

Rows are found by their position in bytes: a row at a place is the first that begins after it. They rise in iteration,
steps and time, so that a range is found by bisection, and a long one is thinned by taking rows at even distances.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from minefleet.monitoring.jsonl_tail import AXES, parse_row, rows_backwards, whole_bytes

WHOLE_BYTES = 2 * 2**20
"""A range of so many bytes is read whole, unless it has too many rows."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Some rows of a run, oldest first."""

    rows: list[Row]
    total: int
    """Rows of the range, about."""
    is_thinned: bool

    def columns(self, keys: Sequence[str]) -> dict[str, list[float | None]]:
        """Each key's number in each row; None where it has none."""
        tops = {key.partition(".")[0] for key in keys}
        flat = [dict(numbers({name: row[name] for name in tops & row.keys()})) for row in self.rows]
        return {key: [row.get(key) for row in flat] for key in keys}


def read_curves(
    path: Path, *, points: int, axis: str = "iteration", begin: float = -math.inf, end: float = math.inf
) -> Curves:
    """Reads about `points` rows, at least 2, whose `axis` is from `begin` to `end`; the last row is among them."""
    if not path.exists():
        return Curves(rows=[], total=0, is_thinned=False)
    with path.open("rb") as file:
        size = whole_bytes(file)
        first = _find(file, size, axis, begin)
        last = max(first, _find(file, size, axis, end, after=True))
        rows = list(_rows_between(file, first, last)) if last - first <= WHOLE_BYTES else []
        if rows and len(rows) <= points:
            return Curves(rows=rows, total=len(rows), is_thinned=False)
        places = (first + (last - first) * number // points for number in range(points))
        taken = {start: row for start, row in (_row_at(file, place, last) for place in places) if row is not None}
        newest = (found for found in rows_backwards(file, first, last) if has_place(found[1]))
        taken |= dict(islice(newest, 1))
        sampled = [row for _, row in sorted(taken.items())]
        total = sampled[-1]["iteration"] - sampled[0]["iteration"] + 1 if sampled else 0
        return Curves(rows=sampled, total=len(rows) or total, is_thinned=True)


def numbers(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """The finite numbers of a row, nested keys joined by dots; None for those that are not finite, or missing."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{prefix}{name}", value if value is not None and math.isfinite(value) else None


def _row_at(file: IO[bytes], place: int, end: int) -> tuple[int, Row | None]:
    """The first row that begins at a place or after it, before `end`, and where it begins."""
    file.seek(max(0, place - 1))
    if place:
        file.readline()
    while (start := file.tell()) < end and (line := file.readline()):  # The learner may have cut it meanwhile.
        if row := _parse(line):
            return start, row
    return end, None


def _rows_between(file: IO[bytes], first: int, last: int) -> Iterator[Row]:
    file.seek(first)
    return (row for line in file.read(last - first).splitlines() if (row := _parse(line)))


def _parse(line: bytes) -> Row | None:
    """The row in a line; None where there is none that has its place on all axes."""
    row = parse_row(line)
    return row if has_place(row) else None


def has_place(row: Row) -> bool:
    """Whether a row has a number on each axis."""
    return all(isinstance(row.get(axis), int | float) for axis in AXES)


def _find(file: IO[bytes], size: int, axis: str, bound: float, *, after: bool = False) -> int:
    """The place of the first row whose `axis` is at least `bound`, or beyond it; `size` where there is none."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        start, row = _row_at(file, middle, size)
        if row is None or (row[axis] > bound if after else row[axis] >= bound):
            high = middle
        else:
            low = start + 1
    return _row_at(file, low, size)[0]
