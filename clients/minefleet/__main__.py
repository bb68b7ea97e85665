"""`python -m minefleet` is `minefleet`."""

import sys

from minefleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
