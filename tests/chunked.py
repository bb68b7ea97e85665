"""Environments whose observations tell how long each decision took, and a trainer that compares."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from minefleet_learner import PPOTrainer

CHUNK = 4
DISCOUNT = 0.8


class Clocked(gymnasium.Env[Any, Any]):
    """Shows its time and its end, which is drawn anew for each episode; step i pays i. Half of the ends are cuts."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.end = 0, int(self.np_random.integers(1, 20))
        return self.look(), {}

    def look(self) -> Any:
        return np.array([self.time, self.end], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time == self.end
        return self.look(), float(self.time), over and self.end % 2 == 0, over and self.end % 2 == 1, {}


class Patience(gymnasium.Env[Any, Any]):
    """Action 0 pays 1 after one step, action 1 pays 6 after five. Patience is worth it from a discount of 0.92 on."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rewards = [0.0, 0.0, 0.0, 0.0, 6.0] if action else [1.0]
        return np.zeros(1, np.float32), sum(rewards), False, False, {"step_rewards": rewards}


class Checking(PPOTrainer):
    """Compares each step that it trains on with what its observations say, and counts them by duration."""

    def train(self) -> None:
        counts: dict[int, int] = {}
        while not self.is_over:
            data = self.fetch_fragments_and_estimate_advantages(self.config.fragments_per_iteration)
            for row, step in data["mask"].nonzero().tolist():
                time, end = data["obs"][row, step].long().tolist()
                played = range(time + 1, min(time + CHUNK, end) + 1)
                duration, reward = int(data["durations"][row, step]), float(data["rewards"][row, step])
                assert duration == len(played), (time, end, duration)
                assert np.isclose(reward, sum(DISCOUNT**i * paid for i, paid in enumerate(played))), (time, end, reward)
                assert bool(data["records"].terminated[row, step]) == (played[-1] == end and end % 2 == 0)
                assert bool(data["records"].truncated[row, step]) == (played[-1] == end and end % 2 == 1)
                counts[duration] = counts.get(duration, 0) + 1
            self._compare(data)
            self.broadcast_model_to_rollout_workers(new_version=True)
        Path("counts.json").write_text(json.dumps(counts))

    def _compare(self, data: dict[str, Any]) -> None:
        """The advantages are those of the durations: δₜ + γ^d λ Âₜ₊₁, slowly, within each fragment."""
        value = data["td_targets"] - data["advantages"]
        for row in range(len(value)):
            for step in range(int(data["mask"][row].sum()) - 1):
                over = data["records"].terminated[row, step] or data["records"].truncated[row, step]
                if not over:
                    gamma = DISCOUNT ** int(data["durations"][row, step])
                    delta = data["rewards"][row, step] + gamma * value[row, step + 1] - value[row, step]
                    expected = delta + gamma * self.gae_lambda * data["advantages"][row, step + 1]
                    torch.testing.assert_close(data["advantages"][row, step], expected, rtol=1e-4, atol=1e-4)
