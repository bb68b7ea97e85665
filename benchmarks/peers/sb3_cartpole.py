"""stable-baselines3's PPO on CartPole, with the hyper-parameters of our preset. Prints [[env_steps, return], ...]."""

import json
import sys
from collections.abc import Callable

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Curve(BaseCallback):
    """Mean return of the last 100 episodes at the end of each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self.returns:
            last = self.returns[-100:]
            self.points.append((self.num_timesteps, sum(last) / len(last)))


def falling(start: float) -> Callable[[float], float]:
    """A schedule that falls linearly to 0."""
    return lambda remaining: remaining * start


def main() -> None:
    seed, env_steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    curve = Curve()
    PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=falling(1e-3),
        clip_range=falling(0.2),
        ent_coef=0.0,
        seed=seed,
        device="cpu",
    ).learn(env_steps, callback=curve)
    print(json.dumps(curve.points))


if __name__ == "__main__":
    main()
