"""Fine-tune VPT to hunt cows in MineStudio: `minefleet train examples/kill_cow.py env.python=PYTHON`.

PYTHON has MineStudio; OpenAI's two files lie in `pretrained/` of the current folder, or elsewhere by
`--map-path pretrained=DIR`. `docs/from-minestudio.md` says what became of each key.
"""


def policy_generator():
    from minestudio.models.openai_vpt.body import load_openai_policy

    return load_openai_policy("pretrained/foundation-model-2x.model", "pretrained/bc-from-early-game-2x.weights")


def env_generator():
    from minestudio.simulator import MinecraftSim
    from minestudio.simulator.callbacks import (
        CommandsCallback,
        FastResetCallback,
        JudgeResetCallback,
        MaskActionsCallback,
        RewardsCallback,
        SummonMobsCallback,
    )

    killed = {"event": "kill_entity", "objects": ["cow"], "reward": 1.0, "identity": "cow", "max_reward_times": 30}
    return MinecraftSim(
        obs_size=(128, 128),  # what VPT was trained on
        preferred_spawn_biome="plains",
        action_type="agent",
        callbacks=[
            SummonMobsCallback([{"name": "cow", "number": 10, "range_x": [-5, 5], "range_z": [-5, 5]}]),
            MaskActionsCallback(inventory=0),  # no time is lost in the inventory
            RewardsCallback([killed]),
            CommandsCallback(
                commands=[
                    "/give @p minecraft:iron_sword 1",
                    "/give @p minecraft:diamond 64",
                    "/effect @p 5 9999 255 true",
                ]
            ),
            FastResetCallback(biomes=["plains"], random_tp_range=1000),
            JudgeResetCallback(600),  # half a minute; a limit, which truncates
        ],
    )


online_dict = {
    "trainer_name": "PPOTrainer",
    "detach_rollout_manager": True,
    "rollout_config": {
        "num_rollout_workers": 2,
        "num_gpus_per_worker": 1.0,
        "num_cpus_per_worker": 1,
        "fragment_length": 256,
        "to_send_queue_size": 6,
        "worker_config": {
            "num_envs": 12,
            "batch_size": 6,
            "restart_interval": 3600,  # engines leak
            "video_fps": 20,
            "video_output_dir": "output/videos",
        },
        "replay_buffer_config": {
            "max_chunks": 4800,
            "max_reuse": 2,
            "max_staleness": 2,
            "fragments_per_report": 40,
            "fragments_per_chunk": 1,
            "database_config": {"path": "output/replay_buffer_cache", "num_shards": 8},
        },
        "episode_statistics_config": {},
    },
    "train_config": {
        "num_workers": 2,
        "num_gpus_per_worker": 1.0,
        "num_iterations": 4000,
        "vf_warmup": 0,
        "learning_rate": 0.00002,
        "anneal_lr_linearly": False,
        "weight_decay": 0.04,
        "adam_eps": 1e-8,
        "batch_size_per_gpu": 1,
        "batches_per_iteration": 200,
        "gradient_accumulation": 10,
        "epochs_per_iteration": 1,
        "context_length": 64,
        "discount": 0.999,
        "gae_lambda": 0.95,
        "ppo_clip": 0.2,
        "clip_vloss": False,
        "max_grad_norm": 5,
        "zero_initial_vf": True,
        "ppo_policy_coef": 1.0,
        "ppo_vf_coef": 0.5,
        "kl_divergence_coef_rho": 0.2,  # stay near what VPT learned from people
        "entropy_bonus_coef": 0.0,
        "coef_rho_decay": 0.9995,
        "log_ratio_range": 50,
        "normalize_advantage_full_batch": True,
        "use_normalized_vf": True,
        "num_readers": 4,
        "num_cpus_per_reader": 0.1,
        "prefetch_batches": 2,
        "save_interval": 10,
        "keep_interval": 40,
        "record_video_interval": 2,
        "fix_decoder": False,
        "resume": None,
        "resume_optimizer": True,
        "save_path": "output",
    },
    "logger_config": {"project": "minestudio_online", "name": "bow_cow"},
}
