"""The recurrent states from which the reference runs over fragments.

The stored state of a fragment is the actor's policy's, not the reference's. Where the fragment before is at hand, in
the same batch or in an earlier one, the reference goes on from the state that it had after that:

    batch k      s/4 ─▶ s/5 ─┐                 t/7: its predecessor was never here: the stored state
    batch k + 1              └─▶ s/6           after it t/8 is carried

Shape legend: B = fragments, T = steps in the longest one; b = fragments that are computed together.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.tree import Tree, flatten, tree_map, unflatten
from minefleet.policies import Policy
from minefleet.policies.precision import compute
from minefleet_learner.data.batch import Batch, Name
from minefleet_learner.data.sequence_windows import windows
from minefleet_learner.targets.forward_passes import compute_dtype, gather, has_memory, observations, stored_state

CARRIED_BYTES = 2**27
"""States that are kept from batch to batch, at most; the streams that were not seen for the longest go first."""


def build_carrier(reference: Policy | None, config: TrainConfig) -> "ReferenceStateCache | None":
    """The carrier that a configuration asks for; None where there is nothing to carry."""
    if reference is None or config.reference_state == "stored" or not has_memory(reference):
        return None
    return ReferenceStateCache(
        reference,
        context_length=config.context_length,
        rows_per_pass=config.inference_batch_size_per_gpu or config.batch_size_per_gpu,
        dtype=compute_dtype(config),
    )


class ReferenceStateCache:
    """The state of a reference after the newest fragment of each stream."""

    def __init__(
        self,
        reference: Policy,
        *,
        context_length: int,
        rows_per_pass: int,
        dtype: torch.dtype,
        most_bytes: int = CARRIED_BYTES,
    ) -> None:
        """Stores its arguments.

        Args:
            reference: With memory; its weights stand still between calls of `forget`.
            context_length: Steps of a pass.
            rows_per_pass: Fragments of a pass.
            dtype: What the layers below the heads compute in.
            most_bytes: States that are kept from batch to batch.
        """
        self._reference = reference
        self._context_length = context_length
        self._rows_per_pass = rows_per_pass
        self._dtype = dtype
        self._most_bytes = most_bytes
        self._after: OrderedDict[str, tuple[int, Tree]] = OrderedDict()
        """By stream: the sequence of the fragment that comes next, and the state before it, a tree of [...]."""

    @torch.no_grad()
    def starts(self, batch: Batch) -> Tree:
        """The reference's states before the fragments of a batch, a tree of [B, ...], carried where they can be."""
        every = torch.split(torch.arange(len(batch), device=batch.mask.device), self._rows_per_pass)
        stored = [stored_state(batch, rows) for rows in every]
        states = tree_map(lambda *leaves: torch.cat(leaves), *stored)
        before = {(stream, sequence): state for stream, (sequence, state) in self._after.items()}
        for wave in _waves(batch.names):
            for row in wave:
                if batch.names[row] in before:
                    tree_map(lambda leaf, new, at=row: leaf[at].copy_(new), states, before[batch.names[row]])
            for rows in self._passes(batch, wave):
                # What is known already was carried from further back.
                before = _by_name(batch.names, rows, self._run(batch, rows, states)) | before
        self._keep(before, batch.names)
        return states

    def forget(self) -> None:
        """Drops all states: the reference has other weights."""
        self._after.clear()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The states for a checkpoint: streams as lines of text, sequences [N], and a tree of [N, ...]."""
        if not self._after:
            return {}
        sequences, states = zip(*self._after.values(), strict=True)
        stacked = tree_map(lambda *leaves: torch.stack(leaves).cpu().numpy(), *states)
        return {
            "streams": np.frombuffer("\n".join(self._after).encode(), np.uint8),
            "sequences": np.array(sequences, np.int64),
            **{f"state/{path}": array for path, array in flatten(stacked).items()},
        }

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverts `to_arrays`."""
        self.forget()
        if not arrays:
            return
        names = arrays["streams"].tobytes().decode().split("\n")
        states = {path.removeprefix("state/"): array for path, array in arrays.items() if path.startswith("state/")}
        for index, (stream, sequence) in enumerate(zip(names, arrays["sequences"].tolist(), strict=True)):
            leaves = {path: torch.tensor(array[index]) for path, array in states.items()}
            self._after[stream] = (sequence, unflatten(leaves))

    def _passes(self, batch: Batch, wave: list[int]) -> Iterator[Tensor]:
        """Parts a wave into rows [b] of one length: what follows the last step of a shorter one is no state."""
        by_length: dict[int, list[int]] = {}
        lengths = batch.mask.sum(1).tolist()
        for row in wave:
            by_length.setdefault(lengths[row], []).append(row)
        for rows in by_length.values():
            yield from torch.split(torch.tensor(rows, device=batch.mask.device), self._rows_per_pass)

    def _run(self, batch: Batch, rows: Tensor, states: Tree) -> Tree:
        """The states [b, ...] after the last steps of fragments of one length."""
        position = batch.position[rows, : int(batch.mask[rows[0]].sum())]
        obs, first = observations(batch, rows, position), gather(batch.seen_first, position)
        state = tree_map(lambda leaf: leaf[rows], states)
        for part in windows(position.shape[1], self._context_length):
            seen = tree_map(lambda leaf, at=part: leaf[:, at], obs)
            _, state = compute(self._reference, seen, state, first[:, part], self._dtype)
        return state

    def _keep(self, before: Mapping[Name, Tree], names: list[Name]) -> None:
        """Keeps the newest state of each stream, and no more bytes than may be."""
        for stream, sequence in sorted(names):
            if sequence >= self._after.get(stream, (0, None))[0]:
                self._after[stream] = (sequence + 1, before[stream, sequence + 1])
            self._after.move_to_end(stream)
        sizes = {stream: _state_bytes(state) for stream, (_, state) in self._after.items()}
        total_bytes = sum(sizes.values())
        while total_bytes > self._most_bytes:
            stream, _ = self._after.popitem(last=False)
            total_bytes -= sizes[stream]


def _waves(names: list[Name]) -> list[list[int]]:
    """Rows that can be computed together, in order: the first fragments of all streams, then the second ones, ..."""
    waves: list[list[int]] = []
    counts: dict[str, int] = {}
    for row in sorted(range(len(names)), key=lambda number: names[number]):
        stream = names[row][0]
        counts[stream] = counts.get(stream, -1) + 1
        if counts[stream] == len(waves):
            waves.append([])
        waves[counts[stream]].append(row)
    return waves


def _by_name(names: list[Name], rows: Tensor, states: Tree) -> dict[Name, Tree]:
    """States [b, ...] by the fragment that they come before. They lie on the CPU: there may be many streams."""
    moved = tree_map(lambda leaf: leaf.cpu(), states)
    following = [(names[row][0], names[row][1] + 1) for row in rows.tolist()]
    return {name: tree_map(lambda leaf, at=index: leaf[at].clone(), moved) for index, name in enumerate(following)}


def _state_bytes(state: Tree) -> int:
    return sum(leaf.nbytes for leaf in flatten(state).values())
