"""Lets no command end because what it shows cannot be shown."""

import io
import traceback
from collections.abc import Callable
from contextlib import suppress


class LossyStderr(io.TextIOWrapper):
    """stderr without a buffer. What it cannot take is lost, as on a full disk or when its reader has gone."""

    def __init__(self) -> None:
        raw = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115  # It stays open.
        super().__init__(raw, "utf-8", "backslashreplace", write_through=True)

    def write(self, text: str) -> int:
        """Writes what it can; raises no `OSError`."""
        with suppress(OSError):
            super().write(text)
        return len(text)


def outlived(say: Callable[[str], None]) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Decorates what only shows something, so that it never raises: each of its errors is said, once."""
    said = set[str]()

    def decorate(show: Callable[[], None]) -> Callable[[], None]:
        def try_to_show() -> None:
            try:
                show()
            except Exception:  # noqa: BLE001  # Training goes on, whatever fails here.
                error = traceback.format_exc()
                if error not in said:
                    said.add(error)
                    say(f"a fault of minefleet's own; training goes on, please report it:\n{error}")

        return try_to_show

    return decorate
