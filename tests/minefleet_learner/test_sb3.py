"""One whole update against stable-baselines3's `PPO.train`, in float64, from the same weights on the same rollout.

Whatever the length of the fragments, minibatches are theirs: steps drawn from the whole rollout. GAE chains fragments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from tests.minefleet_learner.conftest import ACTIONS, SCHEMA, SIZE, random_fragment
from torch import Tensor, nn

from minefleet.config import PolicyConfig, TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree
from minefleet.policies import Policy, PolicyOutput, build
from minefleet.policies.layers.heads import DiscreteHead
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.update_report import UpdateReport
from minefleet_learner.training.updater import Updater

ENVS, STEPS, HIDDEN, SEED = 4, 12, 16, 3
MINIBATCH = 12
CONFIG = TrainConfig(
    epochs_per_iteration=4,
    learning_rate=0.01,
    discount=0.97,
    gae_lambda=0.9,
    ppo_vf_coef=1.0,
    entropy_bonus_coef=0.02,
    max_grad_norm=0.3,
    normalize_advantage_full_batch=False,
    use_normalized_vf=False,
)


class Spaces(gymnasium.Env[Any, Any]):
    """An environment that only says what is seen and done in it."""

    observation_space = spaces.Box(-10, 10, (SIZE,), np.float32)
    action_space = spaces.Discrete(ACTIONS)


class Widened(FlattenExtractor):
    """Observations in float64."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations).double()


class Wide(RolloutBuffer):
    """A rollout in float64 that is shuffled by torch's generator, as ours is."""

    def reset(self) -> None:
        super().reset()
        for name in ("rewards", "returns", "values", "log_probs", "advantages", "episode_starts"):
            setattr(self, name, getattr(self, name).astype(np.float64))

    def get(self, batch_size: int | None = None) -> Iterator[RolloutBufferSamples]:  # type: ignore[override]
        if not self.generator_ready:
            for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
                setattr(self, name, self.swap_and_flatten(getattr(self, name)))
            self.generator_ready = True
        for rows in torch.split(torch.randperm(self.buffer_size * self.n_envs), batch_size or self.buffer_size):
            yield self._get_samples(rows.numpy())


class Twin(Policy):
    """The network of their `MlpPolicy`, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(SIZE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(2)
        )
        self.action_head = DiscreteHead(HIDDEN, ACTIONS)
        self.value_head = nn.Linear(HIDDEN, 1)
        self.value_norm = ValueNorm(enabled=False)
        self.double()

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        del first
        vector = obs["vector"].double()
        params = self.action_head(self.actor(vector))
        return PolicyOutput(params, self.value_head(self.critic(vector)).squeeze(-1)), state


PLACES = {
    "mlp_extractor.policy_net": "actor",
    "mlp_extractor.value_net": "critic",
    "action_net": "action_head.linear",
    "value_net": "value_head",
}


def in_our_names(theirs: PPO) -> dict[str, Tensor]:
    weights = {}
    for name, tensor in theirs.policy.named_parameters():
        (prefix,) = (prefix for prefix in PLACES if name.startswith(prefix + "."))
        weights[PLACES[prefix] + name.removeprefix(prefix)] = tensor.detach().clone()
    return weights


@dataclass(frozen=True)
class Rollout:
    """[ENVS, STEPS, ...] of noise; episodes are terminated and truncated in the midst and at the end."""

    obs: np.ndarray[Any, np.dtype[np.float32]]
    after: np.ndarray[Any, np.dtype[np.float32]]
    """The observations after each step, before a reset."""
    action: np.ndarray[Any, np.dtype[np.int64]]
    reward: np.ndarray[Any, np.dtype[np.float32]]
    terminated: np.ndarray[Any, np.dtype[np.bool_]]
    truncated: np.ndarray[Any, np.dtype[np.bool_]]
    first: np.ndarray[Any, np.dtype[np.bool_]]


def random_rollout() -> Rollout:
    rng = np.random.default_rng(SEED)
    obs = rng.normal(size=(ENVS, STEPS + 1, SIZE)).astype(np.float32)
    ends = rng.random((2, ENVS, STEPS)) < 0.12
    terminated, truncated = ends[0], ends[1] & ~ends[0]
    assert terminated.any()
    assert truncated.any()
    after = np.where(truncated[..., None], rng.normal(size=(ENVS, STEPS, SIZE)), obs[:, 1:]).astype(np.float32)
    done = terminated | truncated
    return Rollout(
        obs=obs[:, :-1],
        after=after,
        action=rng.integers(0, ACTIONS, (ENVS, STEPS)),
        reward=rng.normal(size=(ENVS, STEPS)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        first=np.concatenate([np.ones((ENVS, 1), np.bool_), done[:, :-1]], 1),
    )


def their_ppo() -> PPO:
    torch.manual_seed(SEED)
    theirs = PPO(
        "MlpPolicy",
        DummyVecEnv([Spaces] * ENVS),
        learning_rate=CONFIG.learning_rate,
        n_steps=STEPS,
        batch_size=MINIBATCH,
        n_epochs=CONFIG.epochs_per_iteration,
        gamma=CONFIG.discount,
        gae_lambda=CONFIG.gae_lambda,
        clip_range=CONFIG.ppo_clip,
        normalize_advantage=False,
        ent_coef=CONFIG.entropy_bonus_coef,
        vf_coef=0.5 * CONFIG.ppo_vf_coef,
        max_grad_norm=CONFIG.max_grad_norm,
        rollout_buffer_class=Wide,
        policy_kwargs={
            "net_arch": [HIDDEN, HIDDEN],
            "features_extractor_class": Widened,
            "optimizer_kwargs": {"eps": CONFIG.adam_eps},
        },
        device="cpu",
    )
    theirs.policy.double()
    theirs.set_logger(Logger(None, []))
    return theirs


@torch.no_grad()
def their_update(theirs: PPO, rollout: Rollout) -> Tensor:
    """Returns the recorded log-probabilities [ENVS, STEPS], of the policy before the update."""
    recorded = []
    for step in range(STEPS):
        obs = torch.from_numpy(rollout.obs[:, step])
        values, logp, _ = theirs.policy.evaluate_actions(obs, torch.from_numpy(rollout.action[:, step]))
        cut = theirs.policy.predict_values(torch.from_numpy(rollout.after[:, step])).flatten().numpy()
        reward = rollout.reward[:, step] + theirs.gamma * cut * rollout.truncated[:, step]
        theirs.rollout_buffer.add(
            rollout.obs[:, step], rollout.action[:, step], reward, rollout.first[:, step], values, logp
        )
        recorded.append(logp)
    last = theirs.policy.predict_values(torch.from_numpy(rollout.after[:, -1]))
    done = rollout.terminated[:, -1] | rollout.truncated[:, -1]
    theirs.rollout_buffer.compute_returns_and_advantage(last, done)
    with torch.enable_grad():
        torch.manual_seed(SEED)
        theirs.train()
    return torch.stack(recorded, 1)


def our_batch(rollout: Rollout, logp: Tensor, length: int) -> Batch:
    """Fragments of `length`, environment by environment."""
    places = list(np.ndindex(ENVS, STEPS // length))
    batch = collate([((f"env{env}", number), fragment(rollout, env, number, length)) for env, number in places])
    wide = {name: getattr(batch, name).double() for name in ("reward", "behaviour_value", "next_value")}
    return replace(batch, **wide, behaviour_logp=logp.reshape(-1, length))


def fragment(rollout: Rollout, env: int, number: int, length: int) -> Fragment:
    at = (env, slice(number * length, (number + 1) * length))
    cut = rollout.truncated[at].copy()
    cut[-1] |= not rollout.terminated[at][-1]
    return random_fragment(
        0,
        length,
        terminated=tuple(np.flatnonzero(rollout.terminated[at])),
        truncated=tuple(np.flatnonzero(rollout.truncated[at])),
        obs={"vector": rollout.obs[at]},
        cut_index=np.flatnonzero(cut).astype(np.int32),
        cut_obs={"vector": rollout.after[at][cut]},
        action=rollout.action[at],
        reward=rollout.reward[at],
        first=rollout.first[at],
    )


def in_fragments(config: TrainConfig, length: int, accumulation: int) -> TrainConfig:
    """The same minibatches, from fragments of another length."""
    size = MINIBATCH // length // accumulation
    batches = ENVS * STEPS // length // size
    return replace(config, batch_size_per_gpu=size, batches_per_iteration=batches, gradient_accumulation=accumulation)


def our_update(policy: Policy, batch: Batch, config: TrainConfig) -> UpdateReport:
    updater = Updater(policy, build_optimizer(policy, config), config, None)
    torch.manual_seed(SEED)
    return updater.update(batch, rates(config, 0, 0.0))


@pytest.mark.parametrize(("length", "accumulation"), [(1, 1), (1, 3), (4, 1), (4, 3), (12, 1)])
def test_update_leaves_every_parameter_as_stable_baselines3_does(length: int, accumulation: int) -> None:
    theirs, ours, rollout = their_ppo(), Twin(), random_rollout()
    before = in_our_names(theirs)
    missing, unexpected = ours.load_state_dict(before, strict=False)
    assert not unexpected
    assert all(name.startswith("value_norm.") for name in missing)
    batch = our_batch(rollout, their_update(theirs, rollout), length)
    report = our_update(ours, batch, in_fragments(CONFIG, length, accumulation))
    after = in_our_names(theirs)
    for name, parameter in ours.named_parameters():
        assert (after[name] - before[name]).abs().max() > 1e-3, name
        torch.testing.assert_close(parameter.detach(), after[name], rtol=0, atol=1e-9, msg=name)
    assert report.optimizer_steps == CONFIG.epochs_per_iteration * ENVS * STEPS // MINIBATCH
    assert report.grad_norm > CONFIG.max_grad_norm
    assert report.clip_fraction > 0.01


@pytest.mark.parametrize("key", ["gae_lambda", "discount", "ppo_clip", "max_grad_norm", "adam_eps", "ppo_vf_coef"])
def test_comparison_with_stable_baselines3_sees_a_key_that_differs(key: str) -> None:
    theirs, ours, rollout = their_ppo(), Twin(), random_rollout()
    ours.load_state_dict(in_our_names(theirs), strict=False)
    batch = our_batch(rollout, their_update(theirs, rollout), 4)
    our_update(ours, batch, replace(in_fragments(CONFIG, 4, 1), **{key: 0.9 * getattr(CONFIG, key)}))
    after = in_our_names(theirs)
    off = [(after[name] - parameter.detach()).abs().max().item() for name, parameter in ours.named_parameters()]
    assert max(off) > 1e-6


def test_fresh_policy_has_weights_as_large_as_stable_baselines3s() -> None:
    """Orthogonal ones, whose singular values are all the gain: √2 below, 0.01 for actions, 1 for the value."""
    theirs = their_ppo().policy.state_dict()
    schema = replace(SCHEMA, obs=SCHEMA.obs["vector"])
    ours = build(PolicyConfig(hidden_size=HIDDEN, separate_value_trunk=True), schema).state_dict()
    pairs = {
        "encoder.1": "mlp_extractor.policy_net.0",
        "encoder.3": "mlp_extractor.policy_net.2",
        "value_encoder.1": "mlp_extractor.value_net.0",
        "value_encoder.3": "mlp_extractor.value_net.2",
        "action_head.linear": "action_net",
        "value_head": "value_net",
    }
    for name, their_name in pairs.items():
        sizes, their_sizes = (
            torch.linalg.svdvals(w[f"{n}.weight"].double()) for w, n in ((ours, name), (theirs, their_name))
        )
        torch.testing.assert_close(sizes, their_sizes, rtol=1e-5, atol=1e-7, msg=name)
        assert not ours[f"{name}.bias"].any()
        assert not theirs[f"{their_name}.bias"].any()
