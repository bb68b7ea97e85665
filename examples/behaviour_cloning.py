"""A trainer of one's own: PPO, and beside it the imitation of a demonstrator, on CartPole.

`minefleet train examples/behaviour_cloning.py`
"""

import gymnasium
import numpy as np
import torch

from minefleet_learner import PPOTrainer


def env_generator():
    return gymnasium.make("CartPole-v1")


def demonstrator(obs):
    """Pushes the cart to the side to which the pole falls."""
    angle, speed = obs[2], obs[3]
    return int(angle + 0.5 * speed > 0)


def demonstrations(env, steps):
    """Observations [steps, 4] and actions [steps] of the demonstrator."""
    seen, actions = [], []
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        seen.append(obs)
        actions.append(demonstrator(obs))
        obs, _, terminated, truncated, _ = env.step(actions[-1])
        if terminated or truncated:
            obs, _ = env.reset()
    return torch.from_numpy(np.stack(seen)), torch.tensor(actions)


class BehaviourCloningTrainer(PPOTrainer):
    """Adds -E[ln π(a|s)] over the demonstrator's steps to the loss of every optimizer step."""

    WEIGHT = 0.5
    STEPS = 2_000
    BATCH = 256

    def setup_model_and_optimizer(self):
        policy, optimizer = super().setup_model_and_optimizer()
        device = next(policy.parameters()).device
        self.obs, self.actions = (tensor.to(device) for tensor in demonstrations(self.env_generator(), self.STEPS))
        self.auxiliary_losses["behaviour_cloning"] = self.imitation
        return policy, optimizer

    def imitation(self):
        rows = torch.randint(len(self.actions), (self.BATCH, 1), device=self.actions.device)
        first = torch.ones_like(rows, dtype=torch.bool)
        output, _ = self.policy(self.obs[rows], self.policy.initial_state(self.BATCH), first)
        return -self.WEIGHT * self.policy.action_head.logp(output.params, self.actions[rows]).mean()


online_dict = {
    "trainer_name": "behaviour_cloning.py:BehaviourCloningTrainer",
    "policy": {"hidden_size": 64},
    "rollout_config": {"fragment_length": 32, "worker_config": {"num_envs": 8, "envs_per_process": 8}},
    "train_config": {
        "learning_rate": 1e-3,
        "batch_size_per_gpu": 8,
        "batches_per_iteration": 1,
        "epochs_per_iteration": 4,
    },
    "stop": {"env_steps": 20_000},
}
