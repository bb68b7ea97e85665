"""The parts that the learner's loop works with."""

import threading
from dataclasses import dataclass

from minefleet_learner.checkpoints.host_copy import Copier
from minefleet_learner.diagnostics.parity import ParityProbe
from minefleet_learner.distributed.ranks import Ranks
from minefleet_learner.iteration_commit import LearnerServices
from minefleet_learner.training.updater import Updater


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerParts:
    """The parts of a learner."""

    updater: Updater
    probe: ParityProbe
    services: LearnerServices
    stopping: threading.Event
    """Set when the learner shall stop, by others or by itself."""
    copier: Copier
    """Of the weights."""
    ranks: Ranks
    background: bool
    """Whether iterations are finished beside the training; otherwise on the caller's thread."""
