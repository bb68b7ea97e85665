"""Lets rank 0 of a learner die where it is told to: on the path of a fleet, a role loads this before anything else.

A file in the folder that `MINEFLEET_TEST_DEATHS` names is a death to come, called by one of `MOMENTS`; it is taken away
at that moment, so that the next learner lives.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOMENTS = {"between publish and ack": ("Feed", "ack"), "between ack and checkpoint": ("CheckpointWriter", "submit")}


def mortal(method: Callable[..., Any], death: Path) -> Callable[..., Any]:
    """The method, or the death in its place while that is to come."""

    def call(*arguments: Any) -> Any:
        if death.exists():
            death.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments)

    return call


if "minefleet_learner" in sys.orig_argv and sys.orig_argv[-1] == "0":
    from minefleet_learner import finishing

    for name, (owner, method) in MOMENTS.items():
        kind = getattr(finishing, owner)
        setattr(kind, method, mortal(getattr(kind, method), Path(os.environ["MINEFLEET_TEST_DEATHS"], name)))
