"""Action heads: features to the parameters of a distribution over actions, and everything done with them.

Shape legend: B = environments or fragments, T = steps. Parameters and actions are trees; only the head that made the
parameters knows what they mean.
"""

import abc
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf
from minefleet.core.tree import Tree, join
from minefleet.policies.layers import distributions
from minefleet.policies.layers.layer_utils import POLICY_GAIN, module_name, orthogonal


class ActionHead(nn.Module, abc.ABC):
    """A family of distributions over actions."""

    names: tuple[str, ...] = ()
    """Of the parts of an action, where it has named ones."""

    @abc.abstractmethod
    def forward(self, features: Tensor) -> Tree:
        """Maps features [B, T, F] to parameters, a tree of [B, T, ...]."""

    @abc.abstractmethod
    def sample(self, params: Tree, deterministic: bool = False, generator: torch.Generator | None = None) -> Tree:
        """Draws an action, a tree of [B, T, ...]; the most likely one if `deterministic`."""

    def masked(self, params: Tree, mask: Tree) -> Tree:
        """The parameters of the same distribution over the allowed actions alone.

        Args:
            params: What `forward` returned.
            mask: Tree of [B, T, n], n the number of categories, 0 where forbidden. Where nothing is allowed, which
                happens only where nothing is chosen, all categories are alike.
        """
        raise NotImplementedError(f"{type(self).__name__} has no categories to mask")

    @abc.abstractmethod
    def logp(self, params: Tree, action: Tree) -> Tensor:
        """[B, T] log-probability (density, where continuous) of an action."""

    @abc.abstractmethod
    def entropy(self, params: Tree) -> Tensor:
        """[B, T] entropy in nats."""

    def entropies(self, params: Tree) -> dict[str, Tensor]:
        """The summands of `entropy`, [B, T] each, by the name of the action's part; "" for an action without parts."""
        return {"": self.entropy(params)}

    @abc.abstractmethod
    def kl(self, params: Tree, other: Tree) -> Tensor:
        """[B, T] KL(params ‖ other) in nats."""


class DiscreteHead(ActionHead):
    """One category: logits [B, T, K], actions [B, T] int64.

    Args:
        features: Size of what it is given.
        categories: K.
        layer: Maps features to logits; None for a linear one.
    """

    def __init__(self, features: int, categories: int, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = orthogonal(nn.Linear(features, categories), POLICY_GAIN) if layer is None else layer

    def forward(self, features: Tensor) -> Tree:
        """Logits [B, T, K]."""
        return self.linear(features)

    def masked(self, params: Tree, mask: Tree) -> Tree:
        """Logits [B, T, K]; `mask` is [B, T, K]."""
        return distributions.without(params, mask == 0)

    def sample(self, params: Tree, deterministic: bool = False, generator: torch.Generator | None = None) -> Tree:
        """[B, T] int64."""
        return params.argmax(-1) if deterministic else distributions.categorical_sample(params, generator)

    def logp(self, params: Tree, action: Tree) -> Tensor:
        """[B, T]."""
        return distributions.categorical_logp(params, action)

    def entropy(self, params: Tree) -> Tensor:
        """[B, T]."""
        return distributions.categorical_entropy(params)

    def kl(self, params: Tree, other: Tree) -> Tensor:
        """[B, T]."""
        return distributions.categorical_kl(params, other)


class MultiDiscreteHead(ActionHead):
    """n independent categories: logits [B, T, n, K], actions [B, T, n] int64. K is the largest number of categories."""

    absent: Tensor
    """[n, K] bool: categories that an element with fewer than K lacks."""
    place: Tensor
    """[n, K] int64: where a category stands when those of all elements are lined up; 0 where absent."""

    def __init__(self, features: int, categories: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = (len(categories), max(categories))
        self.linear = orthogonal(nn.Linear(features, math.prod(self.shape)), POLICY_GAIN)
        counts, category = torch.tensor(categories).unsqueeze(-1), torch.arange(self.shape[1])
        absent = category >= counts
        place = (counts.cumsum(0) - counts + category).masked_fill(absent, 0)
        self.register_buffer("absent", absent, persistent=False)
        self.register_buffer("place", place, persistent=False)

    def forward(self, features: Tensor) -> Tree:
        """Logits [B, T, n, K]."""
        return distributions.without(self.linear(features).unflatten(-1, self.shape), self.absent)

    def masked(self, params: Tree, mask: Tree) -> Tree:
        """Logits [B, T, n, K]; `mask` is [B, T, sum of categories]."""
        return distributions.without(params, (mask[..., self.place] == 0) | self.absent)

    def sample(self, params: Tree, deterministic: bool = False, generator: torch.Generator | None = None) -> Tree:
        """[B, T, n] int64."""
        return params.argmax(-1) if deterministic else distributions.categorical_sample(params, generator)

    def logp(self, params: Tree, action: Tree) -> Tensor:
        """[B, T]."""
        return distributions.categorical_logp(params, action).sum(-1)

    def entropy(self, params: Tree) -> Tensor:
        """[B, T]."""
        return distributions.categorical_entropy(params).sum(-1)

    def kl(self, params: Tree, other: Tree) -> Tensor:
        """[B, T]."""
        return distributions.categorical_kl(params, other).sum(-1)


class GaussianHead(ActionHead):
    """Independent normal distributions: actions [B, T, *shape] float32; the deviation does not depend on the state.

    Samples are unbounded, and `logp` is that of the sample. They are clipped to the bounds of the action space on their
    way into the environment, by `minefleet_env.space_conversion.reader`: to the policy, clipping is part of the world.
    """

    def __init__(self, features: int, shape: tuple[int, ...], initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.linear = orthogonal(nn.Linear(features, math.prod(shape)), POLICY_GAIN)
        self.log_std = nn.Parameter(torch.full(shape, initial_log_std))

    def forward(self, features: Tensor) -> Tree:
        """`mean` and `log_std`, [B, T, *shape] each."""
        mean: Tensor = self.linear(features).reshape(*features.shape[:-1], *self.shape)
        return {"mean": mean, "log_std": self.log_std.expand_as(mean)}

    def sample(self, params: Tree, deterministic: bool = False, generator: torch.Generator | None = None) -> Tree:
        """[B, T, *shape] float32."""
        if deterministic:
            return params["mean"]
        return distributions.gaussian_sample(params["mean"], params["log_std"], generator)

    def logp(self, params: Tree, action: Tree) -> Tensor:
        """[B, T]."""
        return self._sum(distributions.gaussian_logp(params["mean"], params["log_std"], action))

    def entropy(self, params: Tree) -> Tensor:
        """[B, T]."""
        return self._sum(distributions.gaussian_entropy(params["log_std"]))

    def kl(self, params: Tree, other: Tree) -> Tensor:
        """[B, T]."""
        elements = distributions.gaussian_kl(params["mean"], params["log_std"], other["mean"], other["log_std"])
        return self._sum(elements)

    def _sum(self, elements: Tensor) -> Tensor:
        return elements.flatten(-len(self.shape)).sum(-1) if self.shape else elements


class DictHead(ActionHead):
    """Independent heads under names: parameters and actions are dicts, log-probabilities, entropies and KLs add up."""

    def __init__(self, heads: Mapping[str, ActionHead]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({module_name(key): head for key, head in heads.items()})
        self.names = tuple(heads)

    def forward(self, features: Tensor) -> Tree:
        """One entry per head."""
        return {key: head(features) for key, head in self._items()}

    def sample(self, params: Tree, deterministic: bool = False, generator: torch.Generator | None = None) -> Tree:
        """One entry per head."""
        return {key: head.sample(params[key], deterministic, generator) for key, head in self._items()}

    def masked(self, params: Tree, mask: Tree) -> Tree:
        """One entry per head; those that `mask` leaves out may do anything."""
        return {key: head.masked(params[key], mask[key]) if key in mask else params[key] for key, head in self._items()}

    def logp(self, params: Tree, action: Tree) -> Tensor:
        """[B, T]."""
        return _total([head.logp(params[key], action[key]) for key, head in self._items()])

    def entropy(self, params: Tree) -> Tensor:
        """[B, T]."""
        return _total(list(self.entropies(params).values()))

    def entropies(self, params: Tree) -> dict[str, Tensor]:
        """One entry per head."""
        return {key: head.entropy(params[key]) for key, head in self._items()}

    def kl(self, params: Tree, other: Tree) -> Tensor:
        """[B, T]."""
        return _total([head.kl(params[key], other[key]) for key, head in self._items()])

    def _items(self) -> list[tuple[str, ActionHead]]:
        return list(zip(self.names, self.heads.values(), strict=True))  # type: ignore[arg-type]  # All are ActionHeads.


def action_head(action: Tree, features: int, *, initial_log_std: float = 0.0, path: str = "") -> ActionHead:
    """Makes the head for a tree of `Leaf`.

    Raises:
        ConfigError: If a leaf has no head, or there are none.
    """
    if isinstance(action, Mapping):
        if not action:
            raise ConfigError(f"the action {path!r} is an empty dict: there is nothing to choose")
        return DictHead(
            {
                key: action_head(action[key], features, initial_log_std=initial_log_std, path=join(path, key))
                for key in sorted(action)
            }
        )
    return _leaf_head(action, features, initial_log_std, path)


def _leaf_head(leaf: Leaf, features: int, initial_log_std: float, path: str) -> ActionHead:
    if leaf.kind == "discrete":
        return DiscreteHead(features, leaf.categories[0])
    if leaf.kind == "multi_discrete":
        return MultiDiscreteHead(features, leaf.categories)
    if leaf.dtype == "float32":
        return GaussianHead(features, leaf.shape, initial_log_std)
    raise ConfigError(
        f"the action {path!r} is a {leaf.kind} of {leaf.dtype}; continuous actions are float32, and integers are "
        "categories: use Discrete or MultiDiscrete, or a policy.generator with a head of its own"
    )


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0)
