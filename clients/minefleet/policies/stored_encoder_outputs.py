"""Stores the outputs of an encoder that is not trained, in the place of the pictures that it reads.

    actor      obs ─▶ policy: encoder ─▶ outputs ─▶ the rest ─▶ logits       a fragment holds the outputs
    learner    outputs ───────────────▶ policy: the rest ─▶ logits           the pictures are blank

The encoder is any submodule of any policy, and may be called several times in a forward pass. Pictures, and outputs,
that the rest of the policy does not read are not stored. That it does not read them is tried with noise on its weights:
a branch whose weights begin at zero would read them later.

Shape legend: B = environments, T = steps.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, flatten, join, tree_map, unflatten
from minefleet.policies.policy import Policy, PolicyOutput
from minefleet.policies.random_observation import BATCH, STEPS, random_observation

KEY = "frozen_encoder"
"""The key of the configuration, and where the outputs lie in an observation."""
CLOSE = 1e-4
"""Outputs of a policy that differ by less are equal, but for rounding."""
NOISE = 0.1
"""Standard deviation of the noise on the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A tensor that the encoder returns."""

    is_flat: bool
    """Whether it is [B * T, ...], else [B, T, ...]."""
    shape: tuple[int, ...]
    """Of one step."""
    dtype: torch.dtype

    @property
    def leaf(self) -> Leaf:
        """As the schema of fragments has it. NumPy has no bfloat16, of which float32 is an exact copy."""
        dtype = torch.float32 if self.dtype == torch.bfloat16 else self.dtype
        return Leaf(kind="box", shape=self.shape, dtype=str(dtype).removeprefix("torch."))


class FrozenEncoder:
    """Stands between a policy and its encoder: remembers its outputs, or gives those that an observation brings.

    Args:
        called: The module whose first argument is the observation, [B, T, ...]: the policy, or what it adapts.
        encoder: The submodule.
    """

    def __init__(self, called: nn.Module, encoder: nn.Module) -> None:
        self.outputs: dict[str, Output] = {}
        """By name, in order of the calls; found by the first pass."""
        self.blank: dict[str, Leaf] = {}
        """The leaves of the observation that are not stored, by path."""
        self.unread: set[str] = set()
        """The names of outputs that are not stored."""
        self._names: list[Any] = []
        """Outputs of each call in a pass, with names in the place of tensors."""
        self._given: dict[str, Tensor] = {}
        self._made: list[Any] = []
        self._shape: tuple[int, ...] = ()
        self._compute: Callable[..., Any] = encoder.forward
        encoder.forward = self._encode
        called.register_forward_pre_hook(self._open)

    def stored(self, obs: Tree, outputs: Tree) -> Tree:
        """The leaves that a fragment holds: of an observation, or its schema, and of the outputs."""
        kept = {path: leaf for path, leaf in flatten(obs).items() if path not in self.blank}
        return unflatten(kept | {join(KEY, name): outputs[name] for name in self.outputs if name not in self.unread})

    def schema(self, schema: Schema) -> Schema:
        """The schema of what is stored of an environment's."""
        leaves = {name: output.leaf for name, output in self.outputs.items()}
        return Schema(obs=self.stored(schema.obs, leaves), action=schema.action)

    def made(self) -> Tree:
        """The outputs of the pass that has just been made, [B, T, ...]; {} where they were given.

        Raises:
            ConfigError: In the first pass, if the encoder was not called, or returns something else than tensors with a
                row for each step.
        """
        if self._given:
            return {}
        if not self.outputs:
            self._find_outputs()
        tensors = [leaf for outputs in self._made for leaf in pytree.tree_leaves(outputs)]
        if len(tensors) != len(self.outputs):
            raise RuntimeError(f"the frozen encoder returned {len(tensors)} tensors, not {len(self.outputs)} as before")
        made = {}
        for tensor, (name, output) in zip(tensors, self.outputs.items(), strict=True):
            if name not in self.unread:
                rows = tensor.unflatten(0, self._shape) if output.is_flat else tensor
                made[name] = rows.float() if rows.dtype == torch.bfloat16 else rows
        return made

    def _find_outputs(self) -> None:
        """Learns from the pass that has just been made what the encoder returns."""
        self._names = [pytree.tree_map(self._add_output, outputs) for outputs in self._made]
        if not self.outputs:
            raise ConfigError("the policy does not call it")

    def _add_output(self, tensor: object) -> str:
        if not isinstance(tensor, Tensor):
            raise ConfigError(f"it returns a {type(tensor).__qualname__}, which is no tensor")
        is_flat = tensor.shape[:1] == (math.prod(self._shape),)
        if not is_flat and tensor.shape[:2] != self._shape:
            raise ConfigError(
                f"of {self._shape[1]} steps of {self._shape[0]} environments it returns {list(tensor.shape)}, which "
                "has not a row for each"
            )
        shape, name = tuple(tensor.shape[1 if is_flat else 2 :]), f"{len(self.outputs):02d}"
        self.outputs[name] = Output(is_flat=is_flat, shape=shape, dtype=tensor.dtype)
        return name

    def _open(self, called: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Takes the outputs out of an observation that brings them, and puts blank pictures in."""
        del called
        obs, *rest = args
        flat = flatten(obs)
        self._given = {name: flat.pop(join(KEY, name)) for name in self.outputs if join(KEY, name) in flat}
        self._made = []
        leaf = next(leaf for leaf in (*self._given.values(), *flat.values()) if isinstance(leaf, Tensor))
        self._shape = tuple(leaf.shape[:2])
        if not self._given:
            return args
        flat |= {
            path: _blank(self._shape, blank.shape, getattr(torch, blank.dtype), leaf.device)
            for path, blank in self.blank.items()
        }
        return unflatten(flat), *rest

    def _encode(self, *args: Any, **kwargs: Any) -> Any:
        if not self._given:
            outputs = self._compute(*args, **kwargs)
            self._made.append(outputs)
            return outputs
        names = self._names[len(self._made)]
        self._made.append(None)
        return pytree.tree_map(self._output, names)

    def _output(self, name: str) -> Tensor:
        output = self.outputs[name]
        device = next(iter(self._given.values())).device
        rows = self._given.get(name, _blank(self._shape, output.shape, output.dtype, device))
        return rows.flatten(0, 1) if output.is_flat else rows


def freeze(policy: Policy, called: nn.Module, name: str, schema: Schema) -> None:
    """Makes a policy store the outputs of its submodule `name`; sets `frozen_encoder` of the policy.

    Args:
        policy: The policy.
        called: The module whose first argument is the observation: the policy, or what it adapts.
        name: Of a submodule of `called`, "backbone" or "encoder.vit".
        schema: What the environment shows and takes.

    Raises:
        ConfigError: If there is no such submodule, it is trained, or its outputs cannot stand for what it reads.
    """
    parts = dict(called.named_modules())
    if name not in parts or parts[name] is called:
        children = ", ".join(child for child, _ in called.named_children())
        raise ConfigError(f"policy.{KEY}={name}: the policy has no such part; it has {children}")
    trained = [key for key, parameter in parts[name].named_parameters() if parameter.requires_grad]
    if trained:
        raise ConfigError(
            f"policy.{KEY}={name}: it is trained ({trained[0]} and {len(trained) - 1} more need a gradient), "
            "so that what it returns now is not what it would return later; call requires_grad_(False) on it"
        )
    policy.frozen_encoder = encoder = FrozenEncoder(called, parts[name])
    if called is policy:
        policy.register_forward_hook(_add_made)
    obs = random_observation(schema, torch.Generator().manual_seed(0))
    try:
        with torch.random.fork_rng(devices=[]):
            _find_outputs(policy, encoder, obs)
            outputs = _outputs(policy, obs)
            _check(policy, encoder, obs, outputs)
            _check_norm(policy, obs, outputs)
            _find_unread(policy, encoder, obs, outputs, schema)
    except ConfigError as error:
        raise ConfigError(f"policy.{KEY}={name}: {error}") from error


def _find_outputs(policy: Policy, encoder: FrozenEncoder, obs: Tree) -> None:
    with torch.enable_grad():
        policy(obs, policy.initial_state(BATCH), _first())
    if any(made.requires_grad for made in encoder.made().values()):
        raise ConfigError("what it reads is the output of parts that are trained, so that its own will change")


def _check_norm(policy: Policy, obs: Tree, outputs: Tree) -> None:
    """Asks whether the outputs stay the same when the statistics of observations change."""
    if policy.obs_norm is None:
        return
    before = {name: tensor.clone() for name, tensor in policy.obs_norm.state_dict().items()}
    for moments in policy.obs_norm.moments:
        moments.get_buffer("mean").add_(1)
    changed = _outputs(policy, obs)
    policy.obs_norm.load_state_dict(before)
    if not all(torch.equal(one, flatten(outputs)[path]) for path, one in flatten(changed).items()):
        raise ConfigError("what it reads is normalised, by statistics that change with every iteration")


def _outputs(policy: Policy, obs: Tree) -> Tree:
    """As actors make them, step by step; from fresh states, since outputs that depend on them will change."""
    made = []
    for step in range(STEPS):
        seen = tree_map(lambda leaf, at=step: leaf[:, at : at + 1], obs)
        made.append(_pass(policy, seen)[0].encoded)
    return tree_map(lambda *leaves: torch.cat(leaves, 1), *made)


def _check(policy: Policy, encoder: FrozenEncoder, obs: Tree, outputs: Tree) -> None:
    """Asks whether the policy says the same with given outputs."""
    if not _equal(_pass(policy, obs), _pass(policy, encoder.stored(obs, outputs)), CLOSE):
        raise ConfigError("with its outputs of single steps, the policy does not say what it says with pictures")


def _find_unread(policy: Policy, encoder: FrozenEncoder, obs: Tree, outputs: Tree, schema: Schema) -> None:
    """Leaves out what may be blank without changing anything that the policy says."""
    noisy = copy.deepcopy(policy)
    frozen = noisy.frozen_encoder
    assert frozen is not None
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.add_(torch.randn_like(parameter) * NOISE)
    expected = _pass(noisy, frozen.stored(obs, outputs))

    def is_unread() -> bool:
        return _equal(expected, _pass(noisy, frozen.stored(obs, outputs)), 0.0)

    for path, leaf in flatten(schema.obs).items():
        if len(leaf.shape) < 2:
            continue
        frozen.blank[path] = leaf
        if not is_unread():
            del frozen.blank[path]
    for name in outputs:
        frozen.unread.add(name)
        if len(frozen.unread) == len(outputs) or not is_unread():
            frozen.unread.remove(name)
    if not frozen.blank:
        raise ConfigError("the policy reads every picture elsewhere, too, so that nothing would be saved")
    encoder.blank, encoder.unread = frozen.blank, frozen.unread


def _pass(policy: Policy, obs: Tree) -> tuple[PolicyOutput, Tree]:
    shape = next(iter(flatten(obs).values())).shape[:2]
    with torch.no_grad():
        outcome: tuple[PolicyOutput, Tree] = policy(obs, policy.initial_state(BATCH), _first()[:, : shape[1]])
    return outcome


def _first() -> Tensor:
    return torch.zeros(BATCH, STEPS, dtype=torch.bool)


def _equal(one: tuple[PolicyOutput, Tree], other: tuple[PolicyOutput, Tree], tolerance: float) -> bool:
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance) for mine, theirs in pairs)


def _tensors(result: tuple[PolicyOutput, Tree]) -> list[Tensor]:
    output, state = result
    return [output.value, *flatten(output.params).values(), *flatten(state).values()]


def _blank(leading: Iterable[int], shape: Iterable[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=dtype, device=device).expand(*leading, *shape)


def _add_made(policy: Any, args: tuple[Any, ...], outcome: tuple[PolicyOutput, Tree]) -> tuple[PolicyOutput, Tree]:
    del args
    output, state = outcome
    return replace(output, encoded=policy.frozen_encoder.made()), state
