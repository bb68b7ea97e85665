"""Names that other libraries have for our keys, and keys that only others have.

Stable-Baselines3, CleanRL, RLlib, Sample Factory, TorchRL and MineStudio are meant. None of these names is taken for
ours: the units differ, and a run that trained by a guess is worse than one line that says what to write.
"""

_NAMES = {
    "env.id": "env env_id env_name environment task",
    "env.kwargs": "env_kwargs env_args",
    "env.wrappers.action_chunk": "action_chunk_size action_horizon chunk_size n_action_steps num_action_chunks",
    "env.wrappers.frame_skip": "action_repeat env_frameskip frameskip",
    "env.wrappers.frame_stack": "env_framestack framestack n_stack num_stack stack_size",
    "env.wrappers.reward_clip": "clip_reward clip_rewards",
    "env.wrappers.time_limit": "max_episode_length max_episode_steps",
    "eval_episodes": "evaluation_duration n_eval_episodes num_eval_episodes",
    "eval_interval": "eval_freq eval_every evaluation_interval",
    "logger_config.name": "exp_name experiment experiment_name run_name wandb_name",
    "logger_config.project": "project_name wandb_project wandb_project_name",
    "logger_config.tensorboard": "tensorboard_log",
    "logger_config.wandb": "track use_wandb with_wandb",
    "policy.gru_size": "lstm_cell_size rnn_hidden_size rnn_size use_lstm use_rnn",
    "policy.hidden_size": "fcnet_hiddens hidden_dim hidden_sizes net_arch",
    "policy.normalize_obs": "norm_obs normalize_input normalize_observation normalize_observations",
    "rollout_config.fragment_length": (
        "bptt_horizon horizon n_steps num_steps rollout rollout_fragment_length rollout_length rollout_steps "
        "unroll_length"
    ),
    "rollout_config.num_rollout_workers": "n_actors num_actors num_env_runners",
    "rollout_config.replay_buffer_config.max_staleness": "max_policy_lag",
    "rollout_config.worker_config.num_envs": "n_envs num_envs_per_env_runner num_envs_per_worker",
    "seed": "random_seed",
    "stop.env_steps": (
        "frames_per_run max_env_steps max_steps n_timesteps num_timesteps timesteps timesteps_total total_env_steps "
        "total_frames total_steps total_timesteps train_for_env_steps"
    ),
    "train_config.adam_eps": "eps optimizer_eps",
    "train_config.anneal_lr_linearly": "anneal_lr lr_anneal use_linear_lr_decay",
    "train_config.batch_size_per_gpu": "batch_size mini_batch_size minibatch_size sgd_minibatch_size train_batch_size",
    "train_config.batches_per_iteration": "n_minibatches nminibatches num_batches_per_epoch num_minibatches",
    "train_config.clip_vloss": "clip_range_vf clip_value_loss vf_clip_param",
    "train_config.context_length": "max_seq_len recurrence seq_len sequence_length",
    "train_config.discount": "discount_factor gamma",
    "train_config.entropy_bonus_coef": (
        "ent_coef ent_coeff entropy_bonus entropy_coef entropy_coeff entropy_weight exploration_loss_coeff"
    ),
    "train_config.epochs_per_iteration": "epochs n_epochs num_epochs num_sgd_iter ppo_epochs update_epochs",
    "train_config.gae_lambda": "gae_lam lam lambda lambda_ lmbda",
    "train_config.learning_rate": "actor_lr learn_rate lr policy_lr",
    "train_config.max_grad_norm": "clip_grad_norm grad_clip grad_norm_clip max_gradient_norm",
    "train_config.normalize_advantage_full_batch": "norm_adv normalize_advantage normalize_advantages",
    "train_config.num_iterations": "n_iterations n_updates num_updates train_iterations training_iteration",
    "train_config.ppo_clip": "clip_coef clip_eps clip_epsilon clip_param clip_range clip_ratio eps_clip ppo_clip_ratio",
    "train_config.ppo_vf_coef": (
        "critic_coef value_coef value_loss_coef value_loss_coeff vf_coef vf_coeff vf_loss_coeff"
    ),
    "train_config.record_video_interval": "capture_video record_video",
    "train_config.resume": "checkpoint_path load_checkpoint restore",
    "train_config.save_interval": "checkpoint_freq checkpoint_interval save_every save_freq",
}
"""Our key -> the names of others."""
UNITS = {"train_config.batch_size_per_gpu": ", in fragments of rollout_config.fragment_length steps"}
"""Keys that count something else than others do."""
OUR_KEYS = {other: key for key, names in _NAMES.items() for other in names.split()}
"""The name of another library -> our key."""
OTHER_NAMES = {other: f"here it is {key}{UNITS.get(key, '')}" for other, key in OUR_KEYS.items()} | {
    **dict.fromkeys(
        ("conv_filters", "encoder_conv_architecture"),
        "convolutions are policy.conv_channels, policy.conv_kernels and policy.conv_strides",
    ),
    "num_workers": "actors are rollout_config.num_rollout_workers, ranks of the learner train_config.num_workers",
    "env_config": "the environment is described by `env`, its processes by `rollout_config.worker_config`",
    "train_config.scaling_config": "ranks are set by train_config.num_workers and train_config.num_gpus_per_worker",
    "logger_config.id": "wandb's run is named by the run's own id, so that a resumed run goes on there",
    "logger_config.resume": "wandb's run goes on when this one does",
    "logger_config.dir": "wandb's files lie in the run directory",
    "logger_config.config": "wandb shows the run's own configuration",
}
"""A name or a full key that only others have -> what is there instead."""
