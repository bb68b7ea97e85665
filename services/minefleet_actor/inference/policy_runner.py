"""Batched inference: the policy, and the recurrent state of every slot, on one device.

    obs rows ──▶ staging (pinned) ──▶ device ┐
                                             ├──▶ forward ──▶ action, logp, value ──▶ one copy back
    state of all slots, on the device ─ gather┘         └──▶ scatter ──▶ state of all slots

Shape legend: S = slots, n = slots in a batch, N = rows that it is padded to.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.core.schema import Schema, zeros
from minefleet.core.tree import Tree, flatten, tree_map, unflatten
from minefleet.policies import Policy
from minefleet.policies.policy import twin
from minefleet.policies.weight_arrays import Architecture, architecture
from minefleet_actor.inference.compiled_forward import Forward, ForwardOptions
from minefleet_actor.inference.per_version_policy import PolicyCopy
from minefleet_actor.inference.policy_outputs import Mask, PolicyEvaluation, PolicyStep, Slots, joined
from minefleet_actor.inference.weight_memory_format import lay_out


class PolicyRunner:
    """Runs a policy over some slots at a time; state stays on the device.

    `decide` belongs to one thread at a time. `reset` may be called beside it, for slots that it is not deciding for.

    Args:
        policy: The policy.
        schema: What it sees and does.
        slots: How many environments it acts in.
        largest: The largest batch; 0 for as many as there are slots.
        device: Where to compute.
        seed: Of the sampling.
        greedy: Take the mode instead of a sample.
        state_dtype: What the state before a fragment is rounded to.
        noise_per_slot: Give every slot noise of its own, so that what it does depends on nothing but what it sees.
        options: How to compute.
        canary: [S] bool, the slots that act by weights of their own. None, or no difference: all act by the same.
    """

    def __init__(
        self,
        policy: Policy,
        schema: Schema,
        slots: int,
        *,
        device: torch.device,
        seed: int,
        greedy: bool,
        largest: int = 0,
        noise_per_slot: bool = False,
        state_dtype: torch.dtype = torch.float32,
        options: ForwardOptions | None = None,
        canary: Mask | None = None,
    ) -> None:
        options = options or ForwardOptions()
        self.largest = slots if options.whole else largest or slots
        self._whole = options.whole
        self._every = np.arange(slots)
        self._policy = policy.to(device).eval()
        if device.type == "cpu":
            lay_out(self._policy)
        is_split = canary is not None and 0 < np.count_nonzero(canary) < slots
        self._acts_by = canary.astype(np.intp) if canary is not None and is_split else np.zeros(slots, np.intp)
        """[S], the index of the policy that a slot acts by."""
        self.device = device
        """The device."""
        self._greedy = greedy
        self._state_dtype = state_dtype
        self._generators = [
            torch.Generator(device).manual_seed(seed + slot) for slot in range(slots if noise_per_slot else 1)
        ]
        self._initial: Tree = tree_map(torch.clone, self._policy.initial_state(1))
        self._remembers = bool(flatten(self._initial))
        self._state: Tree = tree_map(torch.clone, self._policy.initial_state(2 * slots))
        self._slots, self._side = slots, np.zeros(slots, np.intp)
        self._first = np.ones(slots, np.bool_)
        observed = zeros(schema.obs, self.largest)
        example = tree_map(lambda leaf: torch.from_numpy(leaf[:1]).unsqueeze(1).to(device), observed)
        self._encoder = self._policy.frozen_encoder
        leaves = self._encoder.outputs if self._encoder else {}
        self._encoded = {name: output.leaf.zeros(slots) for name, output in leaves.items()}
        self._acting = [
            PolicyCopy(
                one,
                Forward(one, example, self.largest, device=device, options=options),
                tree_map(self._staging, observed),
            )
            for one in (self._policy, *([twin(self._policy)] if is_split else []))
        ]
        self._versions = np.zeros(len(self._acting), np.uint32)

    @property
    def architecture(self) -> Architecture:
        """Of the policy: its weights must have it."""
        return architecture(self._policy)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions in use: the promoted one, and that of canary slots where it is another."""
        return tuple(self._versions.tolist())

    @property
    def version(self) -> int:
        """The oldest version in use."""
        return int(self._versions[0])

    def version_of(self, slot: int) -> int:
        """The version that a slot acts by."""
        return int(self._versions[self._acts_by[slot]])

    def swap(self, weights: Mapping[str, NDArray[Any]], version: int, *, canary: bool = False) -> None:
        """Loads new weights, of canary slots or of all. Called between batches only: a step names what computed it."""
        index = -1 if canary else 0
        self._acting[index].load(weights)
        self._versions[index] = version

    def reset(self, slots: Slots) -> None:
        """Marks the slots' next observations as the first of an episode."""
        self._first[slots] = True

    @torch.inference_mode()
    def decide(self, slots: Slots, obs: Tree, *, keeps: Mask | None = None, begins: Mask | None = None) -> PolicyStep:
        """Computes actions and values, each slot's by the weights that it acts by.

        Args:
            slots: [n], each at most once. Where they act by two versions, the step has them in another order.
            obs: Tree of [S, ...]: what all slots see. Only the rows of `slots` are read.
            keeps: [n] bool; where False the slot's state stays as it was: its value is all that is wanted. None: True.
            begins: [n] bool; where True a fragment begins: the state before the step is wanted, too. None: False.
        """
        keeps = np.ones(len(slots), np.bool_) if keeps is None else keeps
        begins = np.zeros(len(slots), np.bool_) if begins is None else begins
        acts_by = self._acts_by[slots]
        if len(self._acting) > 1:
            order = np.argsort(acts_by, kind="stable")
            slots, keeps, begins, acts_by = slots[order], keeps[order], begins[order], acts_by[order]
        first, parts, start = self._first[slots], [], 0
        for acting, count in zip(self._acting, np.bincount(acts_by).tolist(), strict=False):
            part = slice(start, start + count)
            if count:
                parts.append(self._evaluate(acting, slots[part], obs, keeps[part], begins[part]))
            start += count
        evaluated = parts[0] if len(parts) == 1 else joined(parts)
        action = self._draw(slots, evaluated.params, keeps)
        logp = self._policy.action_head.logp(evaluated.params, action)
        back = _to_host({"action": action, "logp": logp, "value": evaluated.value, **evaluated.encoded})
        for name in evaluated.encoded:
            self._encoded[name][slots] = back.pop(name)
        version = self._versions[acts_by]
        return PolicyStep(slots=slots, keeps=keeps, first=first, before=evaluated.before, version=version, **back)

    def _evaluate(self, acting: PolicyCopy, slots: Slots, obs: Tree, keeps: Mask, begins: Mask) -> PolicyEvaluation:
        """Runs the policy with one version's weights over slots that act by it, and keeps the state that it leaves."""
        count, (computed, rows) = len(slots), self._places(slots, acting.forward)
        fresh = torch.from_numpy(self._first[computed]).to(self.device)
        state = self._gathered(computed, fresh)
        before: dict[int, Tree] = {}
        if begins.any():
            state = self._rounded(state, rows[begins])
            before = self._before(slots[begins], state, rows[begins])
        output, after = acting.forward(self._staged(acting.staging, computed, obs), state, fresh.unsqueeze(1))
        params, value, encoded = output.params, output.value, output.encoded
        if computed is not slots:
            at = torch.from_numpy(rows).to(self.device) if self._whole else slice(count)
            params, value, encoded = _rows(params, at), value[at], _rows(encoded, at)
        self._keep(slots[keeps], after, rows[keeps])
        return PolicyEvaluation(params=params, value=value * acting.std + acting.mean, encoded=encoded, before=before)

    def stored(self, obs: Tree) -> Tree:
        """The stored form of the slots' newest observations, [S, ...]; valid for slots that were decided for.

        Args:
            obs: Tree of [S, ...]: what all slots see.
        """
        return obs if self._encoder is None else self._encoder.stored(obs, self._encoded)

    @torch.inference_mode()
    def state_before(self, slot: int, *, first: bool) -> Tree:
        """The state before the step that the slot has acted in last, as arrays; `first` where that began an episode."""
        row, states = (0, self._initial) if first else (slot + self._slots * (1 - int(self._side[slot])), self._state)
        return tree_map(lambda leaf: leaf[row].cpu().numpy().copy(), states)

    def _rows_of(self, slots: Slots) -> Slots:
        """Rows of the slots' states: two of each are kept, the one before its last step and the one after it."""
        rows: Slots = slots + self._slots * self._side[slots]
        return rows

    def _places(self, slots: Slots, forward: Forward) -> tuple[Slots, Slots]:
        """The slots to compute, padding included, and the rows of those that are wanted.

        Where all are computed each time, each has a row of its own: what a row comes to may depend on where it is.
        """
        if self._whole:
            return self._every, slots
        count, size = len(slots), forward.size(len(slots))
        padded = slots if size == count else np.pad(slots, (0, size - count), mode="edge")
        return padded, self._every[:count]

    def _staging(self, leaf: NDArray[Any]) -> Tensor:
        """Room for a batch of rows, from where a GPU fetches them by itself."""
        rows = torch.from_numpy(np.empty_like(leaf))
        return rows.pin_memory() if self.device.type == "cuda" else rows

    def _staged(self, staging: Tree, slots: Slots, obs: Tree) -> Tree:
        """Copies rows to the device, [N, 1, ...]. The staging is free again when the decision has come back."""

        def stage(room: Tensor, leaf: NDArray[Any]) -> Tensor:
            rows = room[: len(slots)]
            np.take(leaf, slots, 0, out=rows.numpy(), mode="clip")
            return rows.to(self.device, non_blocking=True).unsqueeze(1)

        return tree_map(stage, staging, obs)

    def _gathered(self, slots: Slots, fresh: Tensor) -> Tree:
        """The state before the step, [N, ...]; that of an episode's start where `fresh` [N]."""
        if not self._remembers:
            return self._state
        index = torch.from_numpy(self._rows_of(slots)).to(self.device)
        return tree_map(lambda leaf, initial: _renewed(leaf[index], initial, fresh), self._state, self._initial)

    def _draw(self, slots: Slots, params: Tree, keeps: Mask) -> Tree:
        """Actions [n, 1, ...]. A slot whose noise is its own uses none of it for what it does not do."""
        sample = self._policy.action_head.sample
        if len(self._generators) == 1:
            return sample(params, self._greedy, self._generators[0])
        rows = [
            sample(_rows(params, slice(row, row + 1)), self._greedy or not kept, self._generators[slot])
            for row, (slot, kept) in enumerate(zip(slots.tolist(), keeps.tolist(), strict=True))
        ]
        return tree_map(lambda *leaves: torch.cat(leaves), *rows)

    def _rounded(self, state: Tree, rows: Slots) -> Tree:
        """The state, in some rows rounded to what a fragment keeps of it, so that the learner starts alike."""
        if self._state_dtype == torch.float32 or not len(rows):
            return state
        index, largest = torch.from_numpy(rows).to(self.device), torch.finfo(self._state_dtype).max

        def rounded(leaf: Tensor) -> Tensor:
            if leaf.dtype != torch.float32:
                return leaf
            kept = leaf[index].clamp(-largest, largest).to(self._state_dtype)
            return leaf.index_copy(0, index, kept.to(leaf.dtype))

        return tree_map(rounded, state)

    def _before(self, slots: Slots, state: Tree, rows: Slots) -> dict[int, Tree]:
        """Copies of some rows of the gathered state, by slot."""
        index = torch.from_numpy(rows).to(self.device)
        copies = tree_map(lambda leaf: leaf[index].cpu().numpy(), state)
        return {slot: _rows(copies, row) for row, slot in enumerate(slots.tolist())}

    def _keep(self, slots: Slots, state: Tree, rows: Slots) -> None:
        """Scatters the rows of the state of slots that act."""
        self._first[slots] = False
        if self._remembers:
            self._side[slots] ^= 1
            source_rows, index = (torch.from_numpy(each).to(self.device) for each in (rows, self._rows_of(slots)))
            tree_map(lambda target, source: target.index_copy_(0, index, source[source_rows]), self._state, state)


def _rows(tree: Tree, rows: int | slice | Tensor) -> Tree:
    return tree_map(lambda leaf: leaf[rows], tree)


def _renewed(state: Tensor, initial: Tensor, fresh: Tensor) -> Tensor:
    """The state [N, ...] with that of an episode's start where `fresh` [N]."""
    return torch.where(fresh.view(-1, *[1] * (state.ndim - 1)), initial, state)


def _to_host(tree: Tree) -> Tree:
    """[n, 1, ...] on a device to arrays [n, ...] in memory, in one transfer."""
    leaves: dict[str, Tensor] = flatten(tree)
    if all(leaf.device.type == "cpu" for leaf in leaves.values()):
        return unflatten({path: leaf.numpy()[:, 0] for path, leaf in leaves.items()})
    leaves = {path: leaf.squeeze(1).contiguous() for path, leaf in leaves.items()}
    block = torch.cat([leaf.view(torch.uint8).flatten() for leaf in leaves.values()]).cpu().numpy().data
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for path, leaf in leaves.items():
        dtype = torch.empty(0, dtype=leaf.dtype).numpy().dtype
        arrays[path] = np.frombuffer(block, dtype, leaf.numel(), offset).reshape(leaf.shape)
        offset += leaf.nbytes
    return unflatten(arrays)
