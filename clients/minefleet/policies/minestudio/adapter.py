"""Any policy of MineStudio as one of ours: its own `forward` is called, and learns where episodes begin.

    obs, state, first ─▶ calls ─▶ MinePolicy.forward ─▶ pi_logits ─▶ action_head (ours: samples, log-probabilities, KL)
                                                    └─▶ vpred ─▶ value_norm (ours)

`MinePolicy.forward` has no argument for `first`. MineStudio's memory, `ResidualRecurrentBlocks`, takes one, but its
policies fill it with False, so that an episode remembers the one before it: the adapter puts in ours. Of a policy with
another memory the state is replaced, in the rows where an episode begins, between two calls; so no call sees steps of
two episodes. What a policy remembers outside of its state cannot be replaced, and is refused (`probe`).

The policy stays in evaluation mode, in the learner, too: PPO compares how likely a step is with how likely it was, and
dropout would change that.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, flatten, tree_map, unflatten
from minefleet.policies.layers.action_mask_in_observation import mask_of
from minefleet.policies.layers.heads import DictHead, DiscreteHead
from minefleet.policies.layers.text import decode_text
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet.policies.policy import Policy, PolicyOutput
from minefleet_env.errors import in_one_line

BASE = "MinePolicy"
MEMORY = "ResidualRecurrentBlocks"
"""MineStudio's: called with inputs [B, T, ...], `first` [B, T] and a state."""


def is_mine_policy(policy: object) -> bool:
    """Whether this is a policy of MineStudio, by the name of a base; MineStudio is not imported to ask."""
    return _is_a(policy, BASE)


class MinePolicyAdapter(Policy):
    """A policy of MineStudio.

    It is given the whole observation, every key [B, T, ...] as the schema says, and texts as lists of lists of strings.
    Rows and steps whose texts differ are never in one call, since MineStudio's policies read the first text only.

    Args:
        policy: A `MinePolicy`; taken over, not copied.
        schema: What the environment shows and takes.

    Raises:
        ConfigError: If its heads are not categories or do not fit the action, or its state has not one row for each
            environment.
    """

    def __init__(self, policy: Any, schema: Schema) -> None:
        super().__init__()
        self.policy: nn.Module = policy
        self._name = type(policy).__qualname__
        self._categories = _categories(schema, policy.pi_head, self._name)
        self._texts = [path for path, leaf in flatten(schema.obs).items() if leaf.kind == "text"]
        self._state = _state_of(policy, self._name)
        self._first = torch.zeros(0)
        self.takes_chunks = True
        """Whether one call for several steps says what one for each step would."""
        self.intercepts_masks = False
        """Whether its memory takes `first`; otherwise its state is replaced where an episode begins."""
        for module in policy.modules():
            if _is_a(module, MEMORY):
                module.register_forward_pre_hook(self._call_memory, with_kwargs=True)
                self.intercepts_masks = True
        self.action_head = _Head(policy.pi_head, self._categories)
        self.value_norm = _value_norm(policy.value_head)
        self._after_value = None if _last_layer(policy.value_head) else _unchanging()
        for head in (policy.pi_head, policy.value_head):
            _make_exact(head)
        self.eval()

    @property
    def value_head(self) -> nn.Linear:  # type: ignore[override]  # As an attribute its weights would have two names.
        """The last layer of the policy's; where that is not known, one after it that changes nothing at first."""
        layer = self._after_value or _last_layer(self.policy.value_head)  # type: ignore[arg-type]
        assert layer is not None
        return layer

    def train(self, mode: bool = True) -> "MinePolicyAdapter":
        """As for any module; the policy itself stays in evaluation mode."""
        super().train(mode)
        self.policy.eval()
        return self

    def initial_state(self, batch: int) -> Tree:
        """{"00": [B, ...], "01": ...}: the tensors of the policy's state, in its order."""
        device = self.value_head.weight.device
        leaves = pytree.tree_leaves(self.policy.initial_state(batch))  # type: ignore[operator]
        return _named(leaf.to(device, copy=True) for leaf in leaves if isinstance(leaf, Tensor))

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """See `Policy.forward`."""
        outputs = []
        for start, end in self._spans(obs, first):
            span = tree_map(lambda leaf, start=start, end=end: leaf[:, start:end], obs)
            if not self.intercepts_masks:
                state = self._renewed(state, first[:, start])
            output, state = self._call_by_text(span, state, first[:, start:end])
            outputs.append(output)
        output, mask = _joined(outputs, 1), mask_of(obs)
        if mask is not None:
            output = replace(output, params=self.action_head.masked(output.params, mask))
        return output, state

    def _spans(self, obs: Tree, first: Tensor) -> list[tuple[int, int]]:
        """The steps of each call: all, up to the begin of an episode that the memory is not told, or another text."""
        steps = first.shape[1]
        if not self.takes_chunks:
            return [(step, step + 1) for step in range(steps)]
        breaks = [] if self.intercepts_masks else [first[:, 1:].any(0)]
        if self._texts:
            flat = flatten(obs)
            breaks += [(flat[path][:, 1:] != flat[path][:, :-1]).any(-1).any(0) for path in self._texts]
        starts = (torch.stack(breaks).any(0).nonzero().flatten() + 1).tolist() if breaks else []
        return list(zip([0, *starts], [*starts, steps], strict=True))

    def _renewed(self, state: Tree, begins: Tensor) -> Tree:
        """The state, fresh in the rows [B] where an episode begins."""
        fresh = self.initial_state(len(begins))
        return {
            key: torch.where(begins.reshape(-1, *[1] * (leaf.dim() - 1)), fresh[key], leaf)
            for key, leaf in state.items()
        }

    def _call_by_text(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """One call for the rows of each text; the texts stand still."""
        if not self._texts:
            return self._call(obs, state, first)
        flat = flatten(obs)
        texts = [flat[path][:, 0].cpu() for path in self._texts]
        rows: dict[tuple[str, ...], list[int]] = {}
        for row in range(len(first)):
            rows.setdefault(tuple(decode_text(text[row]) for text in texts), []).append(row)
        outputs, states = [], []
        for some in rows.values():
            output, after = self._call(
                *(tree_map(lambda leaf, some=some: leaf[some], tree) for tree in (obs, state, first))
            )
            outputs.append(output)
            states.append(after)
        order = torch.tensor([row for some in rows.values() for row in some], device=first.device).argsort()
        output = _map_output(lambda leaf: leaf[order], _joined(outputs, 0))
        return output, tree_map(lambda *leaves: torch.cat(leaves)[order], *states)

    def _call(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        tensors = iter(state[key] for key in sorted(state))
        before = pytree.tree_map(lambda leaf: next(tensors) if isinstance(leaf, Tensor) else leaf, self._state)
        self._first = first
        latents, after = self._call_policy(obs, before)
        value = latents["vpred"].float().reshape(first.shape)
        if self._after_value is not None:
            value = self._after_value(value.unsqueeze(-1)).squeeze(-1)
        made = latents["pi_logits"]
        counts = (
            {key: leaf.shape[-1] for key, leaf in made.items()} if isinstance(made, Mapping) else type(made).__name__
        )
        if counts != self._categories:
            raise ConfigError(
                f"{self._name} chooses among {counts} categories, and the environment takes {self._categories}"
            )
        logits = {key: made[key].float().reshape(*first.shape, -1) for key in self._categories}
        encoded = {} if self.frozen_encoder is None else self.frozen_encoder.made()
        state = _named(leaf for leaf in pytree.tree_leaves(after) if isinstance(leaf, Tensor))
        return PolicyOutput(logits, value, encoded), state

    def _call_policy(self, obs: Tree, state: Any) -> Any:
        given = {
            path: [[decode_text(step) for step in row] for row in leaf.cpu()] if path in self._texts else leaf
            for path, leaf in flatten(obs).items()
        }
        try:
            return self.policy(unflatten(given), state)
        except KeyError as error:
            raise ConfigError(
                f"{self._name} fails: {in_one_line(error)}; the observation has {', '.join(given)}, and what else "
                "callbacks observe once their observation_space declares it"
            ) from error

    def _call_memory(self, memory: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Puts ours in the place of the policy's `first`. A policy may hand over several rows for each of ours."""
        inputs, rest = args[0], args[2:]
        first = self._first.repeat_interleave(len(inputs) // len(self._first), 0)
        return ((inputs, first, *rest), kwargs) if len(args) > 1 else (args, {**kwargs, "first": first})


class _Head(DictHead):
    """Samples and evaluates the categories that a policy's own head chooses among; its parameters are that head's."""

    def __init__(self, pi_head: nn.Module, categories: Mapping[str, int]) -> None:
        super().__init__({key: DiscreteHead(0, count, nn.Identity()) for key, count in categories.items()})
        object.__setattr__(self, "_pi_head", pi_head)  # No submodule: its weights would have two names.

    def requires_grad_(self, requires_grad: bool = True) -> "_Head":
        """That of the policy's own head."""
        self._pi_head.requires_grad_(requires_grad)
        return self


class _Exact(nn.Module):
    """Computes in float32 also where all around it does not: rounded logits would show in every ratio."""

    def forward(self, features: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As the class that it is mixed into."""
        with torch.autocast(features.device.type, enabled=False):
            return super().forward(features.float(), *args, **kwargs)


def _make_exact(module: nn.Module) -> None:
    cls = type(module)
    module.__class__ = type(cls.__name__, (_Exact, cls), {})


def _categories(schema: Schema, pi_head: nn.Module, name: str) -> dict[str, int]:
    """Of each part of the action, what a policy of MineStudio can choose among."""
    action = schema.action if isinstance(schema.action, Mapping) else {}
    if not action or any(not isinstance(leaf, Leaf) or leaf.kind != "discrete" for leaf in action.values()):
        kinds = ", ".join(f"{path or 'an action'}: {leaf.kind}" for path, leaf in flatten(schema.action).items())
        raise ConfigError(
            f"{name} chooses a category for each named part of an action, and the environment takes {kinds}"
        )
    for part in pi_head.modules():
        if getattr(part, "nucleus_prob", None) is not None:
            raise ConfigError(
                f"{name} draws from the likeliest categories only (nucleus_prob={part.nucleus_prob}), which is not the "
                "distribution that PPO corrects for: make it with nucleus_prob=None"
            )
    return {key: leaf.categories[0] for key, leaf in sorted(action.items())}


def _state_of(policy: Any, name: str) -> Any:
    """The state of one environment, in the policy's own structure."""
    try:
        one, two = policy.initial_state(1), policy.initial_state(2)
    except TypeError as error:
        raise ConfigError(
            f"{name}.initial_state takes more than the number of environments; override it: {error}"
        ) from error
    shapes = [[leaf.shape for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)] for state in (one, two)]
    if [(2, *shape[1:]) for shape in shapes[0]] != [tuple(shape) for shape in shapes[1]]:
        raise ConfigError(
            f"{name}.initial_state must have the environments first in each of its tensors; for 2 they are {shapes[1]}"
        )
    return one


def _last_layer(value_head: nn.Module) -> nn.Linear | None:
    """The layer whose output is the value; None where that is not known."""
    layer = getattr(value_head, "linear", value_head)
    while isinstance(layer, nn.Sequential) and len(layer):
        layer = layer[-1]
    return layer if isinstance(layer, nn.Linear) else None


def _unchanging() -> nn.Linear:
    layer = nn.Linear(1, 1)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _value_norm(value_head: nn.Module) -> ValueNorm:
    """Denormalises as the policy's normaliser does, if it has one."""
    norm, normalizer = ValueNorm(), getattr(value_head, "normalizer", None)
    if normalizer is not None:
        mean, variance = normalizer.running_mean_var()
        norm.mean.copy_(mean.squeeze())
        norm.variance.copy_(variance.squeeze())
        norm.weight.copy_(normalizer.debiasing_term)
    return norm


def _joined(outputs: list[PolicyOutput], dim: int) -> PolicyOutput:
    return _map_output(lambda *leaves: torch.cat(leaves, dim), *outputs)


def _map_output(function: Callable[..., Tensor], *outputs: PolicyOutput) -> PolicyOutput:
    return PolicyOutput(
        tree_map(function, *(output.params for output in outputs)),
        function(*(output.value for output in outputs)),
        tree_map(function, *(output.encoded for output in outputs)),
    )


def _named(leaves: Iterable[Tensor]) -> Tree:
    return {f"{index:02d}": leaf for index, leaf in enumerate(leaves)}


def _is_a(value: object, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(value).__mro__)
