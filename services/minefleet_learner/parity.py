"""Compares what actors recorded with what the same weights say here.

The ratio of the first update is 1 only if both sides compute alike. A fragment that one version computed from end to
end is evaluated, from its stored state, with that version's weights as actors fetched them, rounded where they were;
whatever differs is a fault: a state that was not reset, a wrong version, another dtype, swapped actions.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from minefleet.policies import Policy
from minefleet.policies.weights import load_numpy
from minefleet.weights.encoding import as_fetched
from minefleet_learner.batch import Batch
from minefleet_learner.forward import evaluate, gather, has_memory, select_steps

FRAGMENTS = 2
"""How many are compared per iteration: enough to notice, too few to cost."""
MOST_VERSIONS = 8
"""Versions that are remembered at most, whatever `max_staleness` allows: each is a copy of the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """The largest differences over some steps; NaN when there were none."""

    steps: int = 0
    logp: float = math.nan
    """Largest |Δ ln π|."""
    value: float = math.nan
    """Largest |ΔV| in normalised units."""


class ParityProbe:
    """The last published weights, and a policy to evaluate them with."""

    def __init__(self, policy: Policy, *, versions: int, context_length: int, rounded: Collection[str]) -> None:
        self._policy = copy.deepcopy(policy).eval()
        self.versions = min(versions, MOST_VERSIONS)
        """How many are remembered at most."""
        self._context_length = context_length
        self._rounded = rounded
        self._published: OrderedDict[int, Mapping[str, NDArray[Any]]] = OrderedDict()

    def remember(self, version: int, weights: Mapping[str, NDArray[Any]]) -> None:
        """Keeps published weights, and forgets the oldest."""
        self._published[version] = weights
        if len(self._published) > self.versions:
            self._published.popitem(last=False)

    @torch.no_grad()
    def compare(self, batch: Batch) -> Parity:
        """Evaluates a few fragments of the version that computed most of them."""
        rows_of = self._whole_fragments(batch)
        if not rows_of:
            return Parity()
        version = max(rows_of, key=lambda number: (len(rows_of[number]), number))
        load_numpy(self._policy, as_fetched(self._published[version], self._rounded))
        chosen = select_steps(
            batch,
            torch.tensor(rows_of[version][:FRAGMENTS], device=batch.mask.device),
            whole_rows=has_memory(self._policy),
        )
        output = evaluate(self._policy, batch, chosen, self._context_length)
        logp = self._policy.action_head.logp(output.params, gather(batch.action, chosen.steps))
        norm = self._policy.value_norm
        recorded_logp = gather(batch.behaviour_logp, chosen.steps)
        recorded_value = norm.normalize(gather(batch.behaviour_value, chosen.steps))
        return Parity(
            steps=int(chosen.mask.sum()),
            logp=float((logp - recorded_logp)[chosen.mask].abs().max()),
            value=float((output.value - recorded_value)[chosen.mask].abs().max()),
        )

    def _whole_fragments(self, batch: Batch) -> dict[int, list[int]]:
        """Rows by version, of the fragments that one remembered version computed from end to end."""
        newest = batch.policy_version.max(1).values
        oldest = batch.policy_version.masked_fill(~batch.mask, torch.iinfo(torch.int64).max).min(1).values
        rows: dict[int, list[int]] = {}
        for row, (low, high) in enumerate(zip(oldest.tolist(), newest.tolist(), strict=True)):
            if low == high and low in self._published:
                rows.setdefault(low, []).append(row)
        return rows
