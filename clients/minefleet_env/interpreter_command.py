"""Starts this package, under the fleet's interpreter or another one.

The package is found by its place, not by a search path: of all that lies beside it nothing becomes importable, so that
another interpreter cannot meet a NumPy, or a gymnasium, that was built for the fleet's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACE = str(Path(__file__).parent)
OLDEST = (3, 8)
BOOT = f"""
import sys
if sys.version_info < {OLDEST}:
    is_now = (sys.executable,) + sys.version_info[:2]
    sys.exit("env.python=%s is Python %d.%d; it must be {OLDEST[0]}.{OLDEST[1]} or newer" % is_now)
sys.path[:] = [place for place in sys.path if place]
import importlib.util
try:
    import numpy
except ImportError as error:
    sys.exit("env.python=%s has no NumPy, which environment processes need: %s" % (sys.executable, error))
spec = importlib.util.spec_from_file_location(
    "minefleet_env", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv.pop(1)]
)
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
from minefleet_env.__main__ import main
main()
"""
FLEETS_OWN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")
"""Variables that say where the fleet's interpreter finds modules."""


def command(python: str, *arguments: str) -> list[str]:
    """The command that starts the package under `python`, "" for the fleet's own interpreter."""
    return [python or sys.executable, "-X", "faulthandler", "-c", BOOT, PLACE, *arguments]


def fleets_own(python: str) -> Sequence[str]:
    """The variables that its process must not inherit."""
    return FLEETS_OWN if python else ()


def environment(python: str) -> dict[str, str]:
    """The variables of its process. Cores go to processes, not to threads of NumPy in each of them.

    Where there is no screen, SDL looks for none: pygame, which draws Gymnasium's frames, would print an error.
    """
    kept = {name: value for name, value in os.environ.items() if name not in fleets_own(python)}
    headless = {} if {"DISPLAY", "WAYLAND_DISPLAY"} & kept.keys() else {"SDL_VIDEODRIVER": "dummy"}
    return dict({"OMP_NUM_THREADS": "1", **headless}, **kept)


def import_path(python: str) -> list[str]:
    """The process's search path for modules besides its interpreter's own; the current folder comes last."""
    here = str(Path.cwd())
    return [here] if python else [*(place for place in sys.path if place not in ("", here)), here]
