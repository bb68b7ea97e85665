"""Checks that the page of `minefleet watch` is built from its sources: `python docs/check_page.py`, in `make check`.

The first line of `page.js` has the SHA-256 of the sources as the build found them; `--print` prints it as it is now.
"""

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "clients" / "watch"
BUNDLE = ROOT / "clients" / "minefleet" / "watch" / "page" / "page.js"
OTHERS = ("build.mjs", "package-lock.json", "package.json", "tsconfig.json")


def digest() -> str:
    """The SHA-256 over the names and the contents of all sources, in hexadecimal."""
    total = hashlib.sha256()
    for path in sorted([*(SOURCES / "src").iterdir(), *(SOURCES / name for name in OTHERS)]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(SOURCES).as_posix()} {content}\n".encode())
    return total.hexdigest()


def main() -> None:
    """Ends with 1 where the page is older than its sources."""
    if "--print" in sys.argv:
        sys.stdout.write(digest())
    elif not BUNDLE.exists() or BUNDLE.read_text().partition("\n")[0] != f"// sources sha256 {digest()}":
        sys.exit("the committed page is not built from clients/watch: run `make page`")


if __name__ == "__main__":
    main()
