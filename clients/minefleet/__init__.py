"""Distributed PPO for game agents whose environments are slow and crash-prone."""
