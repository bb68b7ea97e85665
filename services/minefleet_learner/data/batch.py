"""Fragments to padded tensors, and the parts of them that one forward pass takes.

The observation after a cut lies right behind the step that it follows, so that one pass in the order of time values
every sₜ and every sₜ₊₁:

    steps      s₀ s₁ s₂ ╎  s₃ s₄       the episode was cut after s₂, and the fragment ends with s₄
    seen       o₀ o₁ o₂ c₂ o₃ o₄ c₄
    position   0  1  2     4  5        where each step's observation lies in `seen`; what follows lies one further

The state after a cut observation is not used: the next step is `first`, or there is none.

What is small is collated at once. What may be large, observations and recurrent states, is collated at once too where
it fits, and otherwise unpacked pool by pool (`decode_ahead`).

Shape legend: B = fragments, T = steps in the longest one, S = observations seen in the longest one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.core.errors import RejectedError
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree, flatten, tree_map, unflatten
from minefleet_learner.data.decode_ahead import DecodeAhead
from minefleet_learner.data.unpacked_observations import UnpackedObs, places, stack

Name = tuple[str, int]
"""Stream and sequence of a fragment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Fragments side by side; padding is zeros."""

    names: list[Name]
    """B names."""
    mask: Tensor
    """[B, T] bool, False at padding, which follows the last step."""
    position: Tensor
    """[B, T] int64, where the observation of each step lies in a flattened [B, S]."""
    action: Tree
    """Tree of [B, T, ...]."""
    reward: Tensor
    """[B, T] float32."""
    terminated: Tensor
    """[B, T] bool."""
    truncated: Tensor
    """[B, T] bool."""
    first: Tensor
    """[B, T] bool, state is reset before this step."""
    behaviour_logp: Tensor
    """[B, T] float32."""
    behaviour_value: Tensor
    """[B, T] float32, in reward units."""
    next_value: Tensor
    """[B, T] float32, V(sₜ₊₁) of the behaviour policy in reward units."""
    policy_version: Tensor
    """[B, T] int64."""
    seen: Tree
    """Tree of [B, S, ...], the observations in the order of time; {} where `unpacker` brings them."""
    seen_first: Tensor
    """[B, S] bool, state is reset before this observation."""
    seen_mask: Tensor
    """[B, S] bool, False at padding."""
    recurrent_state: Tree
    """Tree of [B, ...], before the first step; {} without recurrence, or where `unpacker` brings them."""
    duration: Tensor | None = None
    """[B, T] int64, how many steps of its own the environment took in each step; None where that is always one."""
    unpacker: DecodeAhead | None = None
    """Brings `seen` and `recurrent_state` of the rows that are asked for; None where they are here."""

    def __len__(self) -> int:
        """Fragments in the batch."""
        return len(self.names)

    def pools(self, rows: Tensor) -> Sequence[Tensor]:
        """Parts rows [b] into those whose large contents are in memory together; they will be taken in this order."""
        return (rows,) if self.unpacker is None else self.unpacker.announce(rows)

    def tensors(self) -> dict[str, Tree]:
        """The fields that are trees of tensors, by name."""
        return {name: getattr(self, name) for name in OF_TENSORS if getattr(self, name) is not None}

    def sent(self, upload: Callable[[Tree], Tree]) -> "Batch":
        """The same batch where `upload` takes it."""
        return replace(self, **upload(self.tensors()))


OF_TENSORS = tuple(field.name for field in fields(Batch) if field.name not in ("names", "unpacker"))
"""Fields of a batch that are trees of tensors."""


def collate(named: Sequence[tuple[Name, Fragment]]) -> Batch:
    """Pads fragments to one length.

    Raises:
        RejectedError: If a fragment lacks the observation after a cut.
    """
    batch = collate_steps(named)
    return filled(batch, stack([(steps, steps.large_fields) for _, steps in named], batch.seen_mask.shape[1]))


def filled(batch: Batch, large: UnpackedObs) -> Batch:
    """The batch with what is large of all of its rows."""
    return replace(batch, seen=large.seen, recurrent_state=large.recurrent_state)


def collate_steps(named: Sequence[tuple[Name, Fragment]]) -> Batch:
    """Collates what is small; `seen` and `recurrent_state` are left empty, and what is large is not looked at.

    Raises:
        RejectedError: If a fragment lacks the observation after a cut.
    """
    for name, fragment in named:
        _check_cuts(name, fragment)
    is_timed = any(fragment.duration is not None for _, fragment in named)
    stepwise = [_stepwise(fragment, is_timed=is_timed) for _, fragment in named]
    steps = _zeros(stepwise[0], len(named), max(len(fragment) for _, fragment in named))
    widths = [len(fragment) + len(fragment.cut_index) for _, fragment in named]
    seen = {name: np.zeros((len(named), max(widths)), np.bool_) for name in ("seen_first", "seen_mask")}
    for index, (arrays, width) in enumerate(zip(stepwise, widths, strict=True)):
        for path, array in arrays.items():
            steps[path][index, : len(array)] = array
        seen["seen_first"][index, arrays["position"]] = arrays["first"]
        seen["seen_mask"][index, :width] = True
        steps["position"][index] += index * max(widths)
    names = [name for name, _ in named]
    return Batch(names=names, seen={}, recurrent_state={}, **unflatten(_tensors(steps | seen)))


def subset(batch: Batch, rows: Tensor) -> Batch:
    """The fragments `rows` [b] of a batch, padded as they are."""
    rows = rows.to(batch.mask.device)
    if batch.unpacker is not None:
        return filled(subset(replace(batch, unpacker=None), rows), batch.unpacker.take(rows).pick(rows))
    width = batch.seen_mask.shape[1]
    parts = tree_map(lambda leaf: leaf[rows], batch.tensors())
    parts["position"] = parts["position"] + width * (torch.arange(len(rows), device=rows.device) - rows).unsqueeze(1)
    return Batch(names=[batch.names[row] for row in rows.tolist()], **parts)


Arrays = Mapping[str, NDArray[Any]]


def _stepwise(steps: Fragment, *, is_timed: bool) -> Arrays:
    """The small arrays of a fragment, [T, ...] by path; the durations of steps only where a batch `is_timed`."""
    position, _ = places(steps)
    stepwise = {"action": steps.action, "mask": np.ones(len(steps), np.bool_), "position": position}
    for key in "reward terminated truncated first behaviour_logp behaviour_value next_value".split():
        stepwise[key] = getattr(steps, key)
    if is_timed:
        duration = np.ones(len(steps)) if steps.duration is None else steps.duration
        stepwise["duration"] = duration.astype(np.int64)
    return flatten(stepwise | {"policy_version": steps.policy_version.astype(np.int64)})


def _check_cuts(name: Name, fragment: Fragment) -> None:
    wanted = fragment.truncated.copy()
    wanted[-1] |= not fragment.terminated[-1]
    if not np.array_equal(np.flatnonzero(wanted), fragment.cut_index):
        raise RejectedError(
            f"fragment {name[0]}/{name[1]} has observations after the steps {fragment.cut_index.tolist()}, "
            f"expected them after {np.flatnonzero(wanted).tolist()}"
        )


def _zeros(like: Arrays, rows: int, width: int) -> dict[str, NDArray[Any]]:
    return {path: np.zeros((rows, width, *leaf.shape[1:]), leaf.dtype) for path, leaf in like.items()}


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {path: torch.from_numpy(array) for path, array in arrays.items()}
