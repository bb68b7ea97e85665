"""One iteration: its configuration, and its input."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minefleet.config import FleetConfig
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.prefetcher import LeaseInfo
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.training.schedules import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationConfig:
    """The configuration of one iteration."""

    config: FleetConfig
    settings: Mapping[str, Any]
    """The values of live keys that were set, by key."""

    @property
    def text(self) -> str:
        """The settings for other roles, as canonical JSON; "" where there are none."""
        return json.dumps(self.settings, sort_keys=True, separators=(",", ":")) if self.settings else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationInput:
    """The input of one iteration."""

    lease: LeaseInfo
    batch: Batch | None
    """The fragments of the lease; None where this rank has none of them."""
    rates: Rates
    parity: Parity
    """Of what was leased, under the weights that acted it."""
    blocked_s: float
    """Seconds that the loop stood still until the weights might be changed."""
    config: FleetConfig
    """With the values that live keys have in it."""
