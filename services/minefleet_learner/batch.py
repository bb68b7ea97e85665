"""Fragments to padded tensors, and the parts of them that one forward pass takes.

The observation after a cut lies right behind the step that it follows, so that one pass in the order of time values
every sₜ and every sₜ₊₁:

    steps      s₀ s₁ s₂ ╎  s₃ s₄       the episode was cut after s₂, and the fragment ends with s₄
    seen       o₀ o₁ o₂ c₂ o₃ o₄ c₄
    position   0  1  2     4  5        where each step's observation lies in `seen`; what follows lies one further

The state after a cut observation is not used: the next step is `first`, or there is none.

Shape legend: B = fragments, T = steps in the longest one, S = observations seen in the longest one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.errors import RejectedError
from minefleet.fragment import Fragment
from minefleet.tree import Tree, flatten, tree_map, unflatten

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
    """Tree of [B, S, ...], the observations in the order of time."""
    seen_first: Tensor
    """[B, S] bool, state is reset before this observation."""
    seen_mask: Tensor
    """[B, S] bool, False at padding."""
    recurrent_state: Tree
    """Tree of [B, ...], before the first step; {} without recurrence."""

    def __len__(self) -> int:
        """Fragments in the batch."""
        return len(self.names)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        moved = {
            field.name: tree_map(lambda leaf: leaf.to(device), getattr(self, field.name))
            for field in fields(self)
            if field.name != "names"
        }
        return Batch(names=self.names, **moved)


def collate(named: Sequence[tuple[Name, Fragment]]) -> Batch:
    """Pads fragments to one length.

    Raises:
        RejectedError: If a fragment lacks the observation after a cut.
    """
    placed = [_place(name, fragment) for name, fragment in named]
    length, width = max(len(one.position) for one in placed), max(one.width for one in placed)
    steps, seen = _zeros(placed[0].steps, len(placed), length), _zeros(placed[0].seen, len(placed), width)
    for row, one in enumerate(placed):
        _write(steps, row, slice(len(one.position)), one.steps)
        _write(seen, row, one.position, one.seen)
        _write(seen, row, one.after, one.cuts)
        steps["position"][row] += row * width
    return Batch(
        names=[name for name, _ in named],
        recurrent_state=_stack([fragment.recurrent_state for _, fragment in named]),
        **unflatten(_tensors(steps | seen)),
    )


def subset(batch: Batch, rows: Tensor) -> Batch:
    """The fragments `rows` [b] of a batch, padded as they are."""
    rows = rows.to(batch.mask.device)
    width = batch.seen_mask.shape[1]
    parts = {
        field.name: tree_map(lambda leaf: leaf[rows], getattr(batch, field.name))
        for field in fields(batch)
        if field.name != "names"
    }
    parts["position"] = parts["position"] + width * (torch.arange(len(rows), device=rows.device) - rows).unsqueeze(1)
    return Batch(names=[batch.names[row] for row in rows.tolist()], **parts)


Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    """A fragment's arrays by path, and where they go in their row."""

    steps: Arrays
    """Arrays of [T, ...]."""
    seen: Arrays
    """Arrays of [T, ...], of the observations acted on."""
    cuts: Arrays
    """Arrays of [K, ...], of the observations after a cut."""
    position: NDArray[np.int64]
    """[T], where `seen` goes."""
    after: NDArray[np.int64]
    """[K], where `cuts` goes."""

    @property
    def width(self) -> int:
        """Observations seen."""
        return len(self.position) + len(self.after)


def _place(name: Name, fragment: Fragment) -> _Placed:
    _check_cuts(name, fragment)
    length = len(fragment)
    position = np.arange(length) + np.searchsorted(fragment.cut_index, np.arange(length))
    stepwise = {"action": fragment.action, "mask": np.ones(length, np.bool_), "position": position}
    for key in "reward terminated truncated first behaviour_logp behaviour_value next_value".split():
        stepwise[key] = getattr(fragment, key)
    stepwise["policy_version"] = fragment.policy_version.astype(np.int64)
    return _Placed(
        steps=flatten(stepwise),
        seen=flatten({"seen": fragment.obs, "seen_first": fragment.first, "seen_mask": stepwise["mask"]}),
        cuts=flatten({"seen": fragment.cut_obs, "seen_mask": np.ones(len(fragment.cut_index), np.bool_)}),
        position=position,
        after=position[fragment.cut_index] + 1,
    )


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


def _write(buffers: Arrays, row: int, place: slice | NDArray[np.int64], arrays: Arrays) -> None:
    for path, array in arrays.items():
        buffers[path][row, place] = array


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {path: torch.from_numpy(array) for path, array in arrays.items()}


def _stack(trees: Sequence[Tree]) -> Tree:
    return tree_map(lambda *leaves: torch.from_numpy(np.stack(leaves)), trees[0], *trees[1:])
