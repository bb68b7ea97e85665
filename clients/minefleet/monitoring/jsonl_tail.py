"""Follows a file of JSON lines that another process appends to."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

AXES = ("iteration", "env_steps", "wall_s")
"""The place of a row in the training; they rise together."""
BLOCK_BYTES = 65536
"""Of the end of a file, in which its last row is looked for at first."""


class MetricsTail:
    """The lines that a metrics file has gained. A line without its end is left for later.

    A learner that goes on from a checkpoint cuts the file there. It is then read from its start, also where it has
    grown again meanwhile: the last line that was read is compared.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        """Behind the last line that was read."""
        self._last = b""

    def read(self) -> list[dict[str, Any]]:
        """Returns the new rows; all rows when the file was cut or replaced. What is no row is left out."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset - len(self._last))
            data = file.read()
            if not data.startswith(self._last):
                file.seek(0)
                self._offset, self._last, data = 0, b"", file.read()
        data = data.removeprefix(self._last)
        *lines, _ = data.split(b"\n")
        if lines:
            self._offset += data.rindex(b"\n") + 1
            self._last = lines[-1] + b"\n"
        return [row for line in lines if (row := parse_row(line))]


def last_row(path: Path) -> dict[str, Any]:
    """The last whole row of a file; {} where there is none. What stands before is not read."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        return next((row for _, row in rows_backwards(file, 0, whole_bytes(file))), {})


def whole_bytes(file: IO[bytes]) -> int:
    """The bytes up to the end of the last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def rows_backwards(file: IO[bytes], begin: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows between two places at which lines begin, the last one first, each with its place."""
    size = BLOCK_BYTES
    while end > begin:
        start = max(begin, end - size)
        file.seek(start)
        lines = file.read(end - start).splitlines(keepends=True)
        for line in reversed(lines if start == begin else lines[1:]):
            end -= len(line)
            if row := parse_row(line):
                yield end, row
        if start == begin:
            return  # Also where the learner has cut the file meanwhile.
        size *= 4  # A line may be longer than a block.


def parse_row(line: bytes | str) -> dict[str, Any]:
    """The row in a line; {} where there is none, as after a crash of the machine."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file as it is now; [] where there is none."""
    return MetricsTail(path).read()
