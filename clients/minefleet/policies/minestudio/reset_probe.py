"""Probes, with random observations, whether a policy of MineStudio forgets where an episode begins.

What is found decides how the adapter calls it, or that it cannot be trained. Nothing is asked where an observation has
texts, since a policy may take only some.
"""

import copy

import torch
from torch import Tensor

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies.minestudio.adapter import MinePolicyAdapter
from minefleet.policies.policy import PolicyOutput
from minefleet.policies.random_observation import BATCH, STEPS, random_observation

CLOSE = 1e-3
"""Log-probabilities and values that differ by less are equal, but for rounding."""


def probe(adapter: MinePolicyAdapter, schema: Schema) -> None:
    """Sets `intercepts_masks` and `takes_chunks` of the adapter.

    Raises:
        ConfigError: If what a policy says of an environment depends on what it was shown before the episode, or of
            other environments.
    """
    if any(leaf.kind == "text" for leaf in flatten(schema.obs).values()):
        return
    policy, name = copy.deepcopy(adapter), type(adapter.policy).__qualname__
    generator = torch.Generator().manual_seed(0)
    one, other = (random_observation(schema, generator) for _ in range(2))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        fresh = _called(policy, one)
        _called(policy, other)
        if not _equal(_called(policy, one), fresh):
            raise ConfigError(
                f"{name} says something else of an episode's first steps once it has seen others: it remembers outside "
                "of its state, or draws random numbers, so that episodes would leak into each other"
            )
        mixed = tree_map(lambda mine, theirs: torch.cat([mine[:1], theirs[1:]]), one, other)
        if not _equal(_part(_called(policy, mixed), rows=1), _part(fresh, rows=1)):
            raise ConfigError(
                f"{name} says something else of an environment where those beside it differ: they would leak"
            )
        if policy.intercepts_masks and not _forgets(policy, one):
            policy.intercepts_masks = adapter.intercepts_masks = False
        if not _forgets(policy, one):
            raise ConfigError(
                f"{name} remembers the episode before: with a fresh state in the middle of a call, it does not say "
                "what it says in a new one"
            )
        policy.takes_chunks = False
        adapter.takes_chunks = _equal(_called(policy, one), fresh)


def _forgets(policy: MinePolicyAdapter, obs: Tree) -> bool:
    """Whether an episode that begins at step 1 is as one that begins a call."""
    begins = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    begins[:1, 1] = True
    alone = _called(policy, tree_map(lambda leaf: leaf[:, 1:], obs))
    return _equal(_part(_called(policy, obs, begins), rows=1, start=1), _part(alone, rows=1))


def _called(policy: MinePolicyAdapter, obs: Tree, first: Tensor | None = None) -> PolicyOutput:
    leaf = next(iter(flatten(obs).values()))
    first = torch.zeros(leaf.shape[:2], dtype=torch.bool) if first is None else first
    output: PolicyOutput = policy(obs, policy.initial_state(len(leaf)), first)[0]
    return output


def _part(output: PolicyOutput, *, rows: int, start: int = 0) -> PolicyOutput:
    return PolicyOutput(tree_map(lambda leaf: leaf[:rows, start:], output.params), output.value[:rows, start:])


def _equal(one: PolicyOutput, other: PolicyOutput) -> bool:
    pairs = [(one.value, other.value), *((one.params[key], other.params[key]) for key in one.params)]
    return all(torch.allclose(mine, theirs, rtol=CLOSE, atol=CLOSE) for mine, theirs in pairs)
