"""Values on the Corridor's ring that are known exactly, and the learner's own of the same policies.

The actor follows μ and the learner keeps to π, so that only values are learned. Each steps forward with a probability
of its own in every cell. What the learner's targets make of that is the value of a policy that can be written down:

    uncorrected targets    V of μ
    V-trace                V of π_ρ̄(a|x) = min(ρ̄ μ(a|x), π(a|x)) / Σ_b min(ρ̄ μ(b|x), π(b|x))

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, eq. 2.
"""

from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.playing import Player, schema_of_env
from minefleet.config import EnvConfig, TrainConfig
from minefleet.core.schema import Schema
from minefleet.envs.truncation_corridor import FORWARD
from minefleet.policies import Policy
from minefleet.policies.actor_critic import ActorCritic
from minefleet.policies.weight_arrays import to_numpy
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import collate
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Values = NDArray[np.floating[Any]]
BEHAVIOUR = np.array([0.5, 0.3, 0.6, 0.4, 0.7, 0.5, 0.2, 0.6])
"""μ: the probability of stepping forward, by cell."""
TARGET = np.array([0.9, 0.8, 0.3, 0.7, 0.9, 0.2, 0.6, 0.9])
"""π, likewise."""
ENV = EnvConfig(id="minefleet/Corridor-v0", kwargs={"length": len(TARGET)})
SLOTS, LENGTH = 32, 16


def value_of(forward: Values, discount: float) -> Values:
    """Solves V = r + γ P V on the ring, where stepping forward pays 1."""
    ring = np.eye(len(forward))
    moves = forward[:, None] * np.roll(ring, 1, 1) + (1 - forward)[:, None] * np.roll(ring, -1, 1)
    values: Values = np.linalg.solve(ring - discount * moves, forward)
    return values


def between(behaviour: Values, target: Values, rho_bar: float) -> Values:
    """π_ρ̄: the probability of stepping forward, by cell."""
    forward, back = (np.minimum(rho_bar * mu, pi) for mu, pi in ((behaviour, target), (1 - behaviour, 1 - target)))
    policy: Values = forward / (forward + back)
    return policy


def learned(config: TrainConfig, seed: int = 0) -> Values:
    """The values of all cells that the learner ends with."""
    torch.set_num_threads(1)
    seed_everything(seed)
    schema = schema_of_env(ENV)
    policy, acting = tabular(schema, TARGET), tabular(schema, BEHAVIOUR)
    updater = Updater(policy, build_optimizer(policy, config), config, None)
    inference = PolicyRunner(acting, schema, SLOTS, device=torch.device("cpu"), seed=seed, greedy=False)
    inference.swap(to_numpy(acting), 1)
    with closing(Player(ENV, schema, inference, slots=SLOTS, length=LENGTH, seed=seed)) as player:
        for iteration in range(config.num_iterations):
            numbers = rates(config, iteration, iteration / config.num_iterations)
            updater.update(collate(player.play()), numbers)
    cells = torch.eye(len(TARGET)).unsqueeze(1)
    with torch.no_grad():
        output, _ = policy(cells, {}, torch.zeros(len(TARGET), 1, dtype=torch.bool))
        values: Values = policy.value_norm.denormalize(output.value.double()).squeeze(1).numpy()
    return values


def tabular(schema: Schema, forward: Values) -> Policy:
    """A policy that steps forward with these probabilities, and a value per cell."""
    made = ActorCritic(schema, features=len(forward))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
        made.get_parameter("action_head.linear.weight")[FORWARD] = torch.from_numpy(np.log(forward / (1 - forward)))
    return made
