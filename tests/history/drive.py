"""Runs a driver as a process: `python tests/history/drive.py actor --run-dir DIR ...`.

These tests are no installed package, and some distributions install one of the same name, which Python would prefer.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

if __name__ == "__main__":
    package = ModuleType("tests")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["tests"] = package
    sys.exit(importlib.import_module(f"tests.history.{sys.argv.pop(1)}").main())
