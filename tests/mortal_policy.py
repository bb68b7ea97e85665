"""A policy with which rank 0 of a learner dies where it is told to.

A file in the folder that `MINEFLEET_TEST_DEATHS` names is a death to come, called by one of `MOMENTS`; it is taken away
at that moment, so that the next learner lives.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minefleet.config import PolicyConfig
from minefleet.core.schema import Schema
from minefleet.policies import Policy, build
from minefleet_learner import live_config
from minefleet_learner.checkpoints.writer import CheckpointWriter
from minefleet_learner.data.prefetcher import Prefetcher
from minefleet_learner.training.updater import Updater

MOMENTS: dict[str, tuple[Any, str]] = {
    "between publish and ack": (Prefetcher, "ack"),
    "between ack and checkpoint": (CheckpointWriter, "submit"),
    "before an answer": (live_config, "append"),
    "after an answer": (live_config, "append"),
    "before the iteration of an answer": (Updater, "configure"),
}


def policy_generator(schema: Schema) -> Policy:
    """The default policy; where rank 0 of a learner makes it, that may be killed at each of the moments."""
    if "minefleet_learner" in sys.argv[0] and os.environ.get("RANK", "0") == "0":
        for name, (owner, method) in MOMENTS.items():
            death = Path(os.environ["MINEFLEET_TEST_DEATHS"], name)
            setattr(owner, method, mortal(getattr(owner, method), death))
    return build(PolicyConfig(), schema)


def mortal(method: Callable[..., Any], death: Path) -> Callable[..., Any]:
    """The method, or the death in its place, or after it, while that is to come."""

    def call(*arguments: Any, **options: Any) -> Any:
        if death.exists():
            death.unlink()
            if death.name.startswith("after"):
                method(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    return call
