"""Pure functions: advantages, importance weights and the PPO loss."""
