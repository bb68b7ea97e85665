"""Describes a difference between a record and its repetition in words: its place, its size, and common causes.

Shape legend: b = fragments compared, T = steps in the longest one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from minefleet_learner.data.batch import Name

LOGP, VALUE, NEXT_VALUE = "ln π(aₜ|sₜ)", "V(sₜ)", "V(sₜ₊₁)"

AT_FIRST = "only steps from a `first` on differ: the actor does not reset the recurrent state there"
STATE_DIFFERS = (
    "steps agree from a `first` on: the fragment's recurrent state is not the one that the actor went on from"
)
NEXT_VALUES_DIFFER = (
    "only the values of what follows differ: they were computed from a stale recurrent state, or of the observation "
    "after the reset"
)
VALUES = "only values differ: the actor's statistics of the value head are not those that were published"
ACTIONS = "only ln π differs: other actions were recorded than the policy drew, or another mask or distribution used"
EVERYWHERE = (
    "many steps differ: they are stamped with a version that did not compute them, the actor computes in another dtype "
    "than `worker_config.dtype` says, or its statistics of observations are not those that were published"
)
SCATTERED = "single steps differ: what the policy saw or did there is not what was recorded"
BROKEN_SHARE = 0.25
"""Share of the steps from which on a fault is not one of single steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One quantity, as recorded and as recomputed."""

    recorded: Tensor
    """[b, T], as it was recorded: values in reward units."""
    recomputed: Tensor
    """[b, T], likewise."""
    difference: Tensor
    """[b, T] absolute, values in normalised units; 0 where nothing is compared."""
    resolution: Tensor
    """[b, T] likewise, what float32 cannot tell apart in the units of the record."""

    @property
    def excess(self) -> Tensor:
        """[b, T], the part of the difference that is none of float32's."""
        return (self.difference - self.resolution).clamp_min(0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Some fragments, compared from their first step on for as long as one version acted."""

    names: list[Name]
    """b names."""
    version: int
    first: Tensor
    """[b, T] bool."""
    mask: Tensor
    """[b, T] bool, the steps that are compared."""
    sides: Mapping[str, Side]
    """By `LOGP`, `VALUE` and `NEXT_VALUE`."""

    def largest(self, *names: str) -> float:
        """The largest difference of these quantities."""
        return max(float(self.sides[name].difference.max()) for name in names)

    def exceeds(self, bound: float) -> bool:
        """Whether something differs by more than this."""
        return any(bool((side.excess > bound).any()) for side in self.sides.values())


def describe(comparison: Comparison, bound: float) -> str:
    """Names the step that differs most, and what the pattern of all that exceed the bound suggests."""
    worst, side = max(comparison.sides.items(), key=lambda item: float(item[1].excess.max()))
    row, step = divmod(int(side.excess.argmax()), side.excess.shape[1])
    stream, sequence = comparison.names[row]
    recorded, recomputed = float(side.recorded[row, step]), float(side.recomputed[row, step])
    return (
        f"{worst} of step {step} of {stream}/{sequence} was recorded as {recorded:.7g} by version "
        f"{comparison.version}, whose weights say {recomputed:.7g} here: they differ by "
        f"{float(side.difference[row, step]):.3g}, and {bound:.3g} is the bound; {suspect(comparison, bound)}"
    )


def suspect(comparison: Comparison, bound: float) -> str:
    """Common causes of such a pattern."""
    wrong = {name: side.excess > bound for name, side in comparison.sides.items()}
    if not (wrong[LOGP] | wrong[VALUE]).any():
        return NEXT_VALUES_DIFFER
    if place := _of_a_state(comparison, wrong[LOGP] | wrong[VALUE]):
        return place
    if not wrong[LOGP].any():
        return VALUES
    if not wrong[VALUE].any():
        return ACTIONS
    many = BROKEN_SHARE * int(comparison.mask.sum())
    return EVERYWHERE if int((wrong[LOGP] | wrong[VALUE]).sum()) > many else SCATTERED


def _of_a_state(comparison: Comparison, wrong: Tensor) -> str:
    """Whether the differences stay on one side of the episodes' borders; "" where they do not."""
    rows = wrong.any(1)
    wrong, mask = wrong[rows], comparison.mask[rows]
    later = comparison.first[rows].cumsum(1) > 0
    before, after = mask & ~later, mask & later
    if not (before.any() and after.any()):
        return ""
    if not (wrong & before).any():
        return AT_FIRST
    return "" if (wrong & after).any() else STATE_DIFFERS
