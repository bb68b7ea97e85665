"""The learner: leases fragments, computes GAE and PPO, publishes weights, writes checkpoints.

A trainer of your own begins at `BaseTrainer`.
"""

from minefleet_learner.targets.update_report import UpdateReport
from minefleet_learner.trainer import BaseTrainer, GaeActor, PPOTrainer

__all__ = ["BaseTrainer", "GaeActor", "PPOTrainer", "UpdateReport"]
