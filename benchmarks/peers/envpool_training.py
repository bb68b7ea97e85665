"""EnvPool's side of `benchmarks/training.py`, with the loop of CleanRL's `ppo_atari_envpool.py`.

    python envpool_training.py CASE SEED SECONDS

Plays all environments together, then trains, in one process; EnvPool has a thread per core. It ends so many seconds
after its first iteration, with a JSON line: parameters, and rows of training. A row is seconds, steps trained on, and
null: its returns are not read. As in CleanRL, an episode that is cut short counts as ended.
"""

import json
import sys
import time

import envpool
import networks
import torch
from torch import nn
from torch.distributions import Categorical

from harness import whole_cases as numbers
from harness.whole_cases import CASES, CORES, share_cores

ITERATION = numbers.BATCH * numbers.BATCHES


class Network(nn.Module):
    """The network of the case."""

    def __init__(self, case):
        super().__init__()
        self.body = networks.Body(case)
        self.policy, self.value = networks.heads(case)

    def forward(self, obs):
        hidden = self.body(obs)
        return Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


class Player:
    """Plays the environments; [T, N] tensors of what was played."""

    def __init__(self, case, network, seed):
        self._network, self._steps = network, ITERATION // case.envs
        self._envs = envpool.make(
            "Pong-v5",
            env_type="gymnasium",
            num_envs=case.envs,
            num_threads=CORES,
            seed=seed,
            noop_max=1,
            episodic_life=False,
            reward_clip=True,
            repeat_action_probability=0.0,
        )
        self._obs, self._done = torch.from_numpy(self._envs.reset()[0]), torch.zeros(case.envs)

    @torch.no_grad()
    def play(self):
        """Plays an iteration. Returns observations, actions, their log-probabilities, advantages and value targets."""
        columns = {name: [] for name in ("obs", "action", "logp", "value", "reward", "done")}
        for _ in range(self._steps):
            distribution, value = self._network(self._obs)
            action = distribution.sample()
            before = {"obs": self._obs, "action": action, "logp": distribution.log_prob(action), "value": value}
            obs, reward, terminated, truncated, _ = self._envs.step(action.numpy())
            self._obs, self._done = torch.from_numpy(obs), torch.from_numpy(terminated | truncated).float()
            for name, one in (before | {"reward": torch.from_numpy(reward), "done": self._done}).items():
                columns[name].append(one)
        next_value = self._network(self._obs)[1]
        advantage, carried = [], torch.zeros_like(next_value)
        for value, reward, done in zip(*(reversed(columns[name]) for name in ("value", "reward", "done")), strict=True):
            error = reward + numbers.DISCOUNT * next_value * (1 - done) - value
            carried = error + numbers.DISCOUNT * numbers.GAE_LAMBDA * (1 - done) * carried
            advantage.insert(0, carried)
            next_value = value
        obs, action, logp, value = (torch.cat(columns[name]) for name in ("obs", "action", "logp", "value"))
        return obs, action, logp, torch.cat(advantage), torch.cat(advantage) + value


def loss_of(network, obs, action, logp, advantage, target):
    """PPO's loss over a minibatch."""
    distribution, value = network(obs)
    ratio = (distribution.log_prob(action) - logp).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - numbers.CLIP, 1 + numbers.CLIP)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    error = (value - target).square().mean()
    return numbers.VALUE * error - surrogate - numbers.ENTROPY * distribution.entropy().mean()


def main():
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    case = CASES[name]
    share_cores()
    torch.set_num_threads(CORES)
    torch.manual_seed(seed)
    network = Network(case)
    optimizer = torch.optim.Adam(network.parameters(), lr=numbers.LEARNING_RATE, eps=numbers.ADAM_EPS)
    player, rows = Player(case, network, seed), []
    while not rows or rows[-1][0] - rows[0][0] <= seconds:
        played = player.play()
        for part in torch.randperm(ITERATION).split(numbers.BATCH):
            optimizer.zero_grad()
            loss_of(network, *(column[part] for column in played)).backward()
            nn.utils.clip_grad_norm_(network.parameters(), numbers.MAX_GRAD_NORM)
            optimizer.step()
        rows.append((time.monotonic(), (len(rows) + 1) * ITERATION, None))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(json.dumps({"parameters": parameters, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
