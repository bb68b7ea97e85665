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

    A learner that resumes puts a shorter file in the place of the old one; it is then read from its start. The old one
    is kept open meanwhile, so that no new file can look like it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the new rows; all rows when the file was replaced or cut. What is no row is left out."""
        if not self._path.exists():
            return []
        file = self._newest()
        file.seek(self._offset)
        whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return [row for line in whole.splitlines() if (row := parse_row(line))]

    def __enter__(self) -> "MetricsTail":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _newest(self) -> IO[bytes]:
        """The file that is there now, opened at most once."""
        found = self._path.stat()
        if self._file is None or os.fstat(self._file.fileno()).st_ino != found.st_ino:
            self.close()
            self._file = self._path.open("rb")
            self._offset = 0
        elif found.st_size < self._offset:
            self._offset = 0
        return self._file


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
    with MetricsTail(path) as tail:
        return tail.read()
