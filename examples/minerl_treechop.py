"""Chops trees in MineRL 1.0, one point per log. `docs/minecraft.md` says how MineRL is installed.

minefleet train examples/minerl_treechop.py env.python=/opt/minerl/bin/python

The world is HumanSurvival's with an axe in a forest, and not MineRLTreechop's, which has neither VPT's keys nor its
frames. The policy is a small one that learns from nothing; see the guide there for VPT.
"""

LOGS = [f"{wood}_log" for wood in ("oak", "birch", "spruce", "dark_oak", "jungle", "acacia")]


def env_generator():
    from minefleet_env.minecraft.minerl_env import make  # Only the environments' interpreter has MineRL.

    return make(
        "MineRLHumanSurvival-v0",
        biome="forest",
        inventory=[{"type": "iron_axe", "quantity": 1}],
        time_limit=2000,
        rewards=[{"event": "mine_block", "objects": LOGS, "reward": 1.0, "identity": "logs"}],
    )


online_dict = {
    "policy": {"conv_channels": [32, 64, 64], "hidden_size": 256, "gru_size": 256, "activation": "relu"},
    "rollout_config": {
        "fragment_length": 128,
        "worker_config": {
            "num_envs": 4,
            "start_timeout_s": 600,
            "restart_interval": 3600,
            "max_rss_bytes": 8_000_000_000,
            "max_resets_at_once": 2,
        },
    },
    "train_config": {"learning_rate": 2e-4, "batch_size_per_gpu": 2, "batches_per_iteration": 4, "context_length": 64},
    "stop": {"env_steps": 2_000_000},
}
