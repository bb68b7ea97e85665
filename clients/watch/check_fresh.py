"""Checks that the committed page is built from these sources: `python clients/watch/check_fresh.py`, part of `make check`.

The first line of `page.js` has the SHA-256 of the sources, as the build found them; `--print` prints theirs as they are.
"""

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUNDLE = HERE.parent / "minefleet" / "watch" / "page" / "page.js"
OTHERS = ("build.mjs", "package-lock.json", "package.json", "tsconfig.json")


def digest() -> str:
    """The SHA-256 over the names and the contents of all sources, in hexadecimal."""
    total = hashlib.sha256()
    for path in sorted([*(HERE / "src").iterdir(), *(HERE / name for name in OTHERS)]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(HERE).as_posix()} {content}\n".encode())
    return total.hexdigest()


def main() -> None:
    """Ends with 1 where the page is older than its sources."""
    if "--print" in sys.argv:
        print(digest())  # noqa: T201
    elif not BUNDLE.exists() or BUNDLE.read_text().partition("\n")[0] != f"// sources sha256 {digest()}":
        sys.exit("the committed page is not built from clients/watch: run `make page`")


if __name__ == "__main__":
    main()
