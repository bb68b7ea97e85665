"""stable-baselines3's side of `benchmarks/learning.py`: trains a case and prints [[env_steps, return], ...].

    python sb3_learning.py '{"world": "cartpole", "seed": 1, "env_steps": 50000, "num_envs": 8, "ppo": {…}}'

`ppo` are keyword arguments of PPO, of RecurrentPPO with `recurrent`; "lin_0.2" falls linearly to 0. With `normalize`
observations and rewards are, and returns are those before. `"ppo": null` plays at random instead.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import worlds
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

WINDOW = 100
"""Episodes that a mean return is taken over."""
Points = list[tuple[int, float]]


class Curve(BaseCallback):
    """Mean return of the last episodes, at the end of each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: Points = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self.returns:
            last = self.returns[-WINDOW:]
            self.points.append((self.num_timesteps, sum(last) / len(last)))


def falling(start: float) -> Callable[[float], float]:
    """A schedule that falls linearly to 0."""
    return lambda remaining: remaining * start


def arguments_of(ppo: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments, with schedules and activations made of their names."""
    made = {
        name: falling(float(value.removeprefix("lin_"))) if isinstance(value, str) else value
        for name, value in ppo.items()
    }
    kwargs = dict(made.pop("policy_kwargs", {}))
    if "activation_fn" in kwargs:
        kwargs["activation_fn"] = getattr(torch.nn, kwargs["activation_fn"])
    return {**made, "policy_kwargs": kwargs}


def at_random(env: VecEnv, episodes: int) -> Points:
    """One point: the mean return of random actions."""
    returns: list[float] = []
    env.reset()
    steps = 0
    while len(returns) < episodes:
        *_, infos = env.step([env.action_space.sample() for _ in range(env.num_envs)])
        returns += [info["episode"]["r"] for info in infos if "episode" in info]
        steps += env.num_envs
    return [(steps, sum(returns) / len(returns))]


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    env = make_vec_env(getattr(worlds, job["world"]), job["num_envs"], seed=job["seed"])
    if job["ppo"] is None:
        env.action_space.seed(job["seed"])
        print(json.dumps(at_random(env, WINDOW)))
        return
    arguments = arguments_of(job["ppo"])
    if job["normalize"]:
        env = VecNormalize(env, gamma=arguments["gamma"])
    curve, kind = Curve(), "MlpLstmPolicy" if job["recurrent"] else "MlpPolicy"
    algorithm = RecurrentPPO if job["recurrent"] else PPO
    algorithm(kind, env, seed=job["seed"], device="cpu", **arguments).learn(job["env_steps"], callback=curve)
    print(json.dumps(curve.points))


if __name__ == "__main__":
    main()
