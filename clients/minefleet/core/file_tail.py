"""The end of a text file."""

import os
from pathlib import Path


def last_lines(path: Path, size: int, *, begin: int = 0) -> str:
    """The last whole lines of a file from its byte `begin` on, at most `size` bytes of them."""
    with path.open("rb") as file:
        start = max(begin, file.seek(0, os.SEEK_END) - size)
        file.seek(start)
        text = file.read(size)
    return (text.partition(b"\n")[2] if start > begin else text).decode(errors="replace")
