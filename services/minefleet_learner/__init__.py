"""The learner: leases fragments, computes GAE and PPO, publishes weights, writes checkpoints.

A trainer of your own begins at `BaseTrainer`.
"""

from minefleet_learner.base_trainer import BaseTrainer, GaeActor, PPOTrainer
from minefleet_learner.training.update_report import UpdateReport

__all__ = ["BaseTrainer", "GaeActor", "PPOTrainer", "UpdateReport"]
