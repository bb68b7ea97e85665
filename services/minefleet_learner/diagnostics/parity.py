"""Compares what actors recorded with what the same weights say here.

The ratio of the first update is 1 only if both sides compute alike. Fragments are evaluated from their stored state
with the weights of the version that computed their first steps, as actors fetched them, rounded where they were, for as
long as that version acted. Whatever differs is a fault: a state that was not reset, a wrong version, another dtype,
swapped actions.

    steps      s₀ s₁ s₂ s₃ s₄       versions 4 4 4 5 5
    compared   ln π, V of s₀ s₁ s₂; of what follows, V(s₁) V(s₂), for s₃ may have been valued by version 5

Where all versions that are remembered are older, what follows the last step is compared too: nothing newer could have
valued it.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.core.errors import GaveUpError
from minefleet.core.tree import tree_map
from minefleet.policies import Policy
from minefleet.policies.policy import twin
from minefleet.policies.precision import exact_float32
from minefleet.policies.weight_arrays import load_numpy
from minefleet.rpc.weights.bfloat16 import as_fetched
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.sequence_windows import windows
from minefleet_learner.diagnostics.parity_diagnosis import LOGP, NEXT_VALUE, VALUE, Comparison, Side, describe
from minefleet_learner.targets.forward_passes import evaluate, select_seen

logger = logging.getLogger(__name__)

FRAGMENTS = 2
"""Number of fragments compared per iteration: enough to notice, too few to cost."""
MAX_VERSIONS = 8
"""Versions that are remembered at most, whatever `max_staleness` allows: each is a copy of the weights."""
MAX_UNPROBED = 10
"""Iterations in a row without a step to compare, after which a log line says so."""
BOUNDS = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.025}
"""Largest difference by the dtype that actors compute in below the heads, or in which the state before a fragment is
stored; the learner's side is always float32. The latter rounds what V(sₜ₊₁) of the fragment before comes from."""
TOLERANCE_ULPS = 4
"""Roundings of float32 that a value goes through between normalised and reward units, both ways."""


class ParityError(GaveUpError):
    """Actors record what their weights do not say here. Names a step, both numbers and what to suspect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """The largest differences over some steps; NaN when there were none."""

    steps: int = 0
    logp: float = math.nan
    """Largest |Δ ln π|."""
    value: float = math.nan
    """Largest |ΔV| in normalised units, of V(sₜ) and V(sₜ₊₁)."""
    unprobed: int = 0
    """Iterations in a row without a step to compare, this one included."""
    fault: str = ""
    """Describes a difference beyond the bound, where that does not end the run."""


class ParityProbe:
    """The last published weights, and a policy to evaluate them with."""

    def __init__(
        self,
        policy: Policy,
        *,
        max_staleness: int,
        context_length: int,
        rounded: Collection[str],
        bound: float,
        raises: bool = True,
    ) -> None:
        self._policy = twin(policy).eval()
        self.remember_enough(max_staleness)
        self._context_length = context_length
        self._rounded = rounded
        self._bound, self._raises = bound, raises
        self._published: OrderedDict[int, Mapping[str, NDArray[Any]]] = OrderedDict()
        self._unprobed = 0

    def remember_enough(self, max_staleness: int) -> None:
        """Remembers the versions that may have acted what is used, as far as memory allows."""
        self.versions = min(max_staleness + 2, MAX_VERSIONS)

    def remember(self, version: int, weights: Mapping[str, NDArray[Any]]) -> None:
        """Keeps published weights, and forgets the oldest."""
        self._published[version] = weights
        while len(self._published) > self.versions:
            self._published.popitem(last=False)

    @torch.no_grad()
    def compare(self, batch: Batch) -> Parity:
        """Evaluates a few fragments of the version that began most of them.

        Raises:
            ParityError: If something differs by more than the bound, and this probe `raises`.
        """
        rows_of = self._rows_by_version(batch)
        if not rows_of:
            return self._nothing()
        self._unprobed = 0
        version = max(rows_of, key=lambda number: (len(rows_of[number]), number))
        comparison = self._compare(batch, version, torch.tensor(rows_of[version][:FRAGMENTS]))
        parity = Parity(
            steps=int(comparison.mask.sum()), logp=comparison.largest(LOGP), value=comparison.largest(VALUE, NEXT_VALUE)
        )
        fault = describe(comparison, self._bound) if comparison.exceeds(self._bound) else ""
        if fault and self._raises:
            raise ParityError(fault)
        return replace(parity, fault=fault)

    def _nothing(self) -> Parity:
        self._unprobed += 1
        if self._unprobed == MAX_UNPROBED:
            logger.warning(
                "nothing that actors recorded could be compared with its version's weights for %d iterations: "
                "all fragments begin with versions that are no longer remembered",
                MAX_UNPROBED,
            )
        return Parity(unprobed=self._unprobed)

    def _rows_by_version(self, batch: Batch) -> dict[int, list[int]]:
        """Rows by the version of their first step, as far as it is remembered."""
        rows: dict[int, list[int]] = {}
        for row, version in enumerate(batch.policy_version[:, 0].tolist()):
            if version in self._published:
                rows.setdefault(version, []).append(row)
        return rows

    def _compare(self, batch: Batch, version: int, rows: Tensor) -> Comparison:
        """Evaluates fragments that begin with a version."""
        load_numpy(self._policy, as_fetched(self._published[version], self._rounded))
        rows = rows.to(batch.mask.device)
        seen = select_seen(batch, rows, whole_rows=True)
        with exact_float32():
            output = evaluate(self._policy, batch, seen, windows(seen.mask.shape[1], self._context_length))
        at = batch.position[rows] - batch.seen_mask.shape[1] * rows.unsqueeze(1)
        at = at.masked_fill(~batch.mask[rows], 0)
        index = torch.arange(len(rows), device=rows.device).unsqueeze(1), at
        params = tree_map(lambda leaf: leaf[index], output.params)
        logp = self._policy.action_head.logp(params, tree_map(lambda leaf: leaf[rows], batch.action))
        mask = _prefix(batch, version)[rows]
        later = (at + 1).clamp_max(output.value.shape[1] - 1)
        return Comparison(
            names=[batch.names[row] for row in rows.tolist()],
            version=version,
            first=batch.first[rows],
            mask=mask,
            sides={
                LOGP: _side(batch.behaviour_logp[rows], logp, mask),
                VALUE: self._value_side(batch.behaviour_value[rows], output.value[index], mask),
                NEXT_VALUE: self._value_side(
                    batch.next_value[rows],
                    output.value.gather(1, later),
                    ~batch.terminated[rows] & (mask if version == max(self._published) else _but_last(mask)),
                ),
            },
        )

    def _value_side(self, recorded: Tensor, value: Tensor, mask: Tensor) -> Side:
        """Compares in normalised units what lies recorded in reward units."""
        norm = self._policy.value_norm
        side = _side(norm.normalize(recorded), value, mask)
        resolution = TOLERANCE_ULPS * torch.finfo(torch.float32).eps * (recorded.abs() + norm.mean.abs()) / norm.std
        return replace(side, recorded=recorded, recomputed=norm.denormalize(value), resolution=resolution)


def _prefix(batch: Batch, version: int) -> Tensor:
    """[B, T] bool: the steps from the first on that the version computed without a break."""
    return ((batch.policy_version == version) & batch.mask).int().cumprod(1).bool()


def _but_last(mask: Tensor) -> Tensor:
    """[b, T] bool: the entries of a mask that another one follows."""
    return mask & mask.roll(-1, 1).index_fill(1, torch.tensor([mask.shape[1] - 1], device=mask.device), value=False)


def _side(recorded: Tensor, recomputed: Tensor, mask: Tensor) -> Side:
    """A side of the comparison.

    Values that are not finite are left to the update, which leaves them out and counts them.
    """
    difference = (recomputed - recorded).abs().nan_to_num(nan=math.inf)
    return Side(
        recorded=recorded,
        recomputed=recomputed,
        difference=difference.masked_fill(~(mask & recorded.isfinite()), 0.0),
        resolution=torch.zeros_like(difference),
    )
