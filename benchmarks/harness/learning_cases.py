"""Cases of `benchmarks/learning.py`, for both sides with the same hyper-parameters.

They are rl-baselines3-zoo's for its PPO (`hyperparams/ppo.yml`), but for gSDE in Pendulum, which both sides leave out.
LunarLander's are the defaults of PPO itself, with eight environments. MinAtar is not in the zoo; its settings are those
of Atari there, on vectors. Recall's are ours, on both sides.

`steps` are fragments times their length, and our coefficient of the value loss is twice theirs, which has no ½.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One environment, and how both sides train on it."""

    world: str
    """A function in `peers/worlds.py`."""
    env_steps: int
    num_envs: int
    theirs: Mapping[str, Any]
    """Keyword arguments of PPO."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Settings that `theirs` lacks, by sections of a configuration."""
    fragment_length: int = 32
    seeds: int = 3
    normalize: bool = False
    """Observations, by their running statistics; there rewards, too. Here advantages and values are in any case."""
    recurrent: bool = False
    also_in_turn: bool = False
    """Whether ours is also measured at staleness 0, as theirs is."""

    @property
    def least(self) -> dict[str, Any]:
        """The least that a user has to configure beside the environment."""
        return {"policy": {"gru_size": 64}} if self.recurrent else {}


CASES = {
    "CartPole": Case(
        world="cartpole",
        env_steps=50_000,
        num_envs=8,
        theirs={
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
    ),
    "Acrobot": Case(
        world="acrobot",
        env_steps=100_000,
        num_envs=16,
        normalize=True,
        theirs={"n_steps": 256, "batch_size": 64, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.94},
    ),
    "Pendulum": Case(
        world="pendulum",
        env_steps=100_000,
        num_envs=4,
        theirs={
            "n_steps": 1024,
            "batch_size": 64,
            "n_epochs": 10,
            "gamma": 0.9,
            "gae_lambda": 0.95,
            "learning_rate": 1e-3,
        },
    ),
    "LunarLander": Case(
        world="lunarlander",
        env_steps=300_000,
        num_envs=8,
        seeds=5,
        also_in_turn=True,
        theirs={"n_steps": 256, "batch_size": 64, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95},
    ),
    "Hopper": Case(
        world="hopper",
        env_steps=200_000,
        num_envs=1,
        normalize=True,
        theirs={
            "n_steps": 512,
            "batch_size": 32,
            "n_epochs": 5,
            "gamma": 0.999,
            "gae_lambda": 0.99,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
            "policy_kwargs": {"net_arch": [256, 256], "activation_fn": "ReLU", "log_std_init": -2},
        },
    ),
    "Breakout": Case(
        world="breakout",
        env_steps=300_000,
        num_envs=8,
        theirs={
            "n_steps": 128,
            "batch_size": 256,
            "n_epochs": 4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "learning_rate": "lin_2.5e-4",
            "clip_range": "lin_0.1",
            "ent_coef": 0.01,
            "policy_kwargs": {"net_arch": [256, 256], "activation_fn": "ReLU"},
        },
    ),
    "Recall": Case(
        world="recall",
        env_steps=100_000,
        num_envs=16,
        fragment_length=64,
        recurrent=True,
        also_in_turn=True,
        theirs={
            "n_steps": 64,
            "batch_size": 256,
            "n_epochs": 6,
            "gamma": 0.99,
            "gae_lambda": 1.0,
            "learning_rate": 2e-3,
            "ent_coef": 0.003,
            "policy_kwargs": {"net_arch": [], "lstm_hidden_size": 64},
        },
        ours={"policy": {"hidden_layers": 1, "gru_size": 64, "separate_value_trunk": False}},
    ),
}


def configuration(case: Case) -> dict[str, Any]:
    """Ours, but for where the environment lies, the seed and the end."""
    theirs = case.theirs
    rate, anneal_rate = _scheduled(theirs.get("learning_rate", 3e-4))
    clip, anneal_clip = _scheduled(theirs.get("clip_range", 0.2))
    kwargs = theirs.get("policy_kwargs", {})
    fragments = theirs["batch_size"] // case.fragment_length
    base: dict[str, Any] = {
        "policy": {
            "hidden_size": (kwargs.get("net_arch") or [64])[0],
            "hidden_layers": 2,
            "separate_value_trunk": True,
            "activation": kwargs.get("activation_fn", "Tanh").lower(),
            "initial_log_std": kwargs.get("log_std_init", 0.0),
            "normalize_obs": case.normalize,
        },
        "rollout_config": {
            "fragment_length": case.fragment_length,
            "worker_config": {"num_envs": case.num_envs, "envs_per_process": case.num_envs},
        },
        "train_config": {
            "learning_rate": rate,
            "anneal_lr_linearly": anneal_rate,
            "ppo_clip": clip,
            "anneal_clip_linearly": anneal_clip,
            "batch_size_per_gpu": fragments,
            "batches_per_iteration": case.num_envs * theirs["n_steps"] // theirs["batch_size"],
            "epochs_per_iteration": theirs["n_epochs"],
            "context_length": case.fragment_length,
            "discount": theirs["gamma"],
            "gae_lambda": theirs["gae_lambda"],
            "entropy_bonus_coef": theirs.get("ent_coef", 0.0),
            "max_grad_norm": theirs.get("max_grad_norm", 0.5),
            "ppo_vf_coef": 2 * theirs.get("vf_coef", 0.5),
            "save_interval": 0,
        },
    }
    for section, keys in case.ours.items():
        base[section] |= keys
    return base


def _scheduled(value: float | str) -> tuple[float, bool]:
    """A rate, and whether it falls linearly to 0."""
    return (float(value.removeprefix("lin_")), True) if isinstance(value, str) else (value, False)
