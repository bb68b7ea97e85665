"""The learner: leases fragments, computes GAE and PPO, publishes weights, writes checkpoints."""
