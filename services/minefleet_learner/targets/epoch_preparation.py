"""Prepares the data of an iteration's epochs: pieces, numbers of their steps, and the states before them.

Shape legend: B = fragments, T = steps in the longest one, P = pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy
from minefleet_learner.algorithms.ppo import StepTargets, normalize
from minefleet_learner.data.batch import Batch, Name, subset
from minefleet_learner.data.sequence_windows import Pieces, cut, sequences, windows
from minefleet_learner.targets.batch_statistics import BatchStats
from minefleet_learner.targets.forward_passes import PASS_STEPS, compute_dtype, gather, has_memory
from minefleet_learner.targets.reference_policy_state_cache import ReferenceStateCache
from minefleet_learner.targets.sequence_start_states import states_before
from minefleet_learner.targets.value_and_advantage_estimates import Estimates


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The data of the epochs."""

    batch: Batch
    pieces: Pieces
    start: Tree
    """Tree of [P, ...] on the CPU, since a transformer's are large: the state before each piece; {} for the stored
    ones, or without memory."""
    reference_start: Tree
    """Likewise, the reference's."""
    targets: StepTargets
    """[B, T] float32 each."""

    def targets_of(self, steps: Tensor) -> StepTargets:
        """The targets of steps, [p, L] as indices into a flattened [B, T]."""
        return StepTargets(*(gather(leaf, steps) for leaf in self.targets))

    def rows_of(self, chosen: Tensor) -> Tensor:
        """The fragments of pieces [p], rising, each once."""
        rows: Tensor = torch.unique(self.pieces.row[chosen.to(self.pieces.row.device)])
        return rows

    def names_of(self, chosen: Tensor) -> list[Name]:
        """Their names."""
        return [self.batch.names[row] for row in self.rows_of(chosen).tolist()]

    def subset(self, rows: Tensor) -> tuple["Prepared", Tensor]:
        """The same of some fragments.

        Args:
            rows: [b] int64, rising.

        Returns:
            It, and which pieces it has of these, [p] int64.
        """
        pieces, chosen = self.pieces.of(rows, self.batch.mask.shape[1])
        prepared = Prepared(
            batch=subset(self.batch, rows),
            pieces=pieces,
            start=tree_map(lambda leaf: leaf[chosen.cpu()], self.start),
            reference_start=tree_map(lambda leaf: leaf[chosen.cpu()], self.reference_start),
            targets=StepTargets(*(leaf[rows] for leaf in self.targets)),
        )
        return prepared, chosen


class Preparer:
    """Prepares batches for a policy, which `reference`, if there is one, pulls towards itself."""

    def __init__(
        self, policy: Policy, reference: Policy | None, carrier: ReferenceStateCache | None, config: TrainConfig
    ) -> None:
        """Stores its arguments; `carrier` is the reference's."""
        self._policy = policy
        self._reference = reference
        self._carrier = carrier
        self._config = config
        self._has_memory = has_memory(policy)

    def prepare(self, part: Estimates, before: BatchStats) -> Prepared:
        """Changes units, and cuts fragments into what minibatches are drawn from."""
        batch, advantage, norm = part.batch, part.advantage, self._policy.value_norm
        if self._config.normalize_advantage_full_batch:
            advantage = normalize(advantage, part.trained, before.advantage)
        parts = self._windows(part.trained.shape[1])
        pieces = cut(part.trained, parts)
        reference_start: Tree = {}
        if self._reference is not None:
            carried = {} if self._carrier is None else self._carrier.starts(batch)
            reference_start = self._starts(self._reference, batch, pieces, parts, state=carried, before={})
        return Prepared(
            batch=batch,
            pieces=pieces,
            start=self._starts(self._policy, batch, pieces, parts, state={}, before=part.start),
            reference_start=reference_start,
            targets=StepTargets(
                behaviour_logp=batch.behaviour_logp,
                proximal_logp=self._proximal_logp(part),
                advantage=advantage,
                value_target=norm.normalize(part.target),
                anchor_value=norm.normalize(part.value),
            ),
        )

    def pieces_of_a_pass(self, prepared: Prepared) -> int:
        """So many sequences as a pass may have fragments, or their steps, on a CPU no more than stay in its caches."""
        size = self._config.batch_size_per_gpu
        if self._has_memory:
            return size
        mask = prepared.batch.mask
        steps = size * mask.shape[1]
        return steps if mask.device.type != "cpu" else min(steps, PASS_STEPS)

    def _starts(
        self, policy: Policy, batch: Batch, pieces: Pieces, parts: Sequence[slice], *, state: Tree, before: Tree
    ) -> Tree:
        """The states before pieces; {} for the stored ones. Those before windows are computed where they are not known.

        Args:
            policy: Whose.
            batch: The fragments.
            pieces: Those that are trained on.
            parts: All windows.
            state: What the policy has before fragments; {} for the stored states.
            before: What is known before windows, a tree of [B, W, ...]; {} for nothing.
        """
        if not self._has_memory:
            return {}
        if len(parts) == 1:
            return tree_map(lambda leaf: leaf[pieces.row].cpu(), state)
        config = self._config
        before = before or states_before(
            policy,
            batch,
            parts,
            rows_per_pass=config.inference_batch_size_per_gpu or config.batch_size_per_gpu,
            dtype=compute_dtype(config),
            state=state,
        )
        row, window = pieces.row.cpu(), pieces.window.cpu()
        return tree_map(lambda leaf: leaf[row, window], before)

    def _proximal_logp(self, part: Estimates) -> Tensor:
        """[B, T] of the policy from which the update may not go far: with `clip`, the behaviour policy."""
        if self._config.off_policy == "clip" or part.proximal_logp is None:
            return part.batch.behaviour_logp
        return part.proximal_logp

    def _windows(self, length: int) -> list[slice]:
        """The parts that fragments are cut into."""
        if not self._has_memory:
            return windows(length, 1)
        return sequences(length, self._config)
