"""The input of one iteration."""

from dataclasses import dataclass

from minefleet.config import FleetConfig
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.prefetcher import LeaseInfo
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.training.schedules import Rates


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
