"""Configuration of the learner: `train_config` of the seeds."""

import math
from dataclasses import dataclass
from typing import Literal

from minefleet.config.field_validators import above, at_least, divides, points, whole_or_share, within
from minefleet.config.live_field import live
from minefleet.core.errors import ConfigError

AUTO = "auto"
"""`resume` by what the run's directory holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """PPO and the learner's bookkeeping.

    One iteration trains on num_workers * batch_size_per_gpu * batches_per_iteration fragments.
    """

    num_workers: int = 1
    """Learner ranks, >= 1, each a process with its part of every iteration's fragments. Seeds: 2."""
    num_gpus_per_worker: float = 0.0
    """GPUs of each rank, whole ones or a share of one, >= 0; the learner gets its own before the actors do. Otherwise
    as `rollout_config.num_gpus_per_worker`. Seeds: 1.0."""
    device: str = "auto"
    """Torch device of the training: `auto` takes CUDA when there is one, else the CPU."""
    torch_threads: int = 0
    """Threads of torch on the CPU, in each rank; 0 means its share of the cores at hand, at least 1. One core is
    left to the actors, unless `max_staleness` is 0: they wait then while it trains."""
    num_iterations: int = live(4000)
    """Iterations after which the run ends, >= 1. Linear annealing ends here, or at `stop.env_steps` when that is
    earlier. Seeds: 4000."""
    vf_warmup: int = live(0)
    """Iterations at the start in which only the value head is trained, >= 0. Seeds: 0."""
    learning_rate: float = live(3e-4)
    """AdamW's step size, > 0; at the start, where `anneal_lr_linearly` or `learning_rate_schedule` change it. Seeds:
    2e-5."""
    anneal_lr_linearly: bool = live(False)
    """Let the learning rate fall linearly to 0 over the run. Seeds: False."""
    learning_rate_schedule: list[list[float]] = live([])
    """Points [share of the run, factor on the learning rate], rising shares in [0, 1] and factors >= 0, linear between
    them and level outside: [[0, 0], [0.1, 1]] warms up. Multiplies with `anneal_lr_linearly`. None: 1 throughout."""
    weight_decay: float = 0.0
    """AdamW's decoupled decay, >= 0. Seeds: 0.04."""
    adam_eps: float = 1e-5
    """AdamW's epsilon, > 0. Seeds: 1e-8."""
    batch_size_per_gpu: int = 8
    """A micro-batch has as many steps as this many fragments, >= 1, drawn from all of the iteration: single ones, with
    memory sequences of `context_length`, this many of them to a pass. Seeds: 1."""
    batches_per_iteration: int = 1
    """Micro-batches per rank and iteration, a multiple of `gradient_accumulation`. Seeds: 10-200."""
    gradient_accumulation: int = 1
    """Micro-batches per optimizer step, >= 1. Seeds: 10."""
    epochs_per_iteration: int = live(1)
    """Passes over an iteration's fragments, >= 1. Seeds: 1."""
    context_length: int = 64
    """Steps of the sequences that a policy with memory trains on, >= 1, within a fragment; no gradient passes their
    start. Seeds: 64."""
    discount: float = 0.99
    """Discount per step, in [0, 1]: γ. A decision that played n steps (`env.wrappers.action_chunk`) counts γⁿ. Seeds:
    0.999."""
    gae_lambda: float = live(0.95)
    """Bias-variance trade-off of GAE, in [0, 1]. Seeds: 0.95."""
    gae_values: Literal["recomputed", "behaviour"] = "recomputed"
    """Whether advantages use the learner's current values or those that the actor recorded. `behaviour` with `clip`
    saves a forward pass over the data."""
    off_policy: Literal["clip", "decoupled", "vtrace"] = "clip"
    """Correction for data of older policies: `clip`, PPO's ratio to the behaviour policy alone; `decoupled`, a ratio to
    the policy at the start of the iteration, weighted by that one's to the behaviour policy; `vtrace`, V-trace targets
    and advantages in a loss like that of `decoupled`."""
    importance_weight_cap: float = live(2.0)
    """`decoupled`: the largest weight of a step, > 0."""
    vtrace_rho_bar: float = live(1.0)
    """`vtrace`: the largest weight of a step in its own value target and in the policy loss, > 0; decides whose values
    are learned."""
    vtrace_c_bar: float = live(1.0)
    """`vtrace`: the largest weight, before `gae_lambda`, by which a step hands on what came after it, > 0; decides only
    how fast."""
    ppo_clip: float = live(0.2)
    """Clip range of the ratio to the behaviour policy, or with `decoupled` and `vtrace` to the policy at the start of
    the iteration, > 0. Seeds: 0.2."""
    anneal_clip_linearly: bool = live(False)
    """Let the clip range fall linearly to 0 over the run."""
    clip_vloss: bool = live(False)
    """Clip the value update to ±`ppo_clip` in normalised units. Seeds: False."""
    max_grad_norm: float = live(0.5)
    """Gradient norm to clip to, > 0. Seeds: 5."""
    zero_initial_vf: bool = False
    """Start a fresh run with a value head of zeros. Seeds: True."""
    ppo_policy_coef: float = live(1.0)
    """Weight of the policy loss, >= 0. Seeds: 1.0."""
    ppo_vf_coef: float = live(0.5)
    """Weight of the value loss ½·MSE, >= 0. Seeds: 0.5."""
    kl_divergence_coef_rho: float = live(0.0)
    """Weight of KL(current ‖ reference), >= 0; 0 keeps no reference. Seeds: 0.0-0.2."""
    coef_rho_decay: float = live(1.0)
    """Factor on that weight per iteration, in [0, 1]. Seeds: 0.9995."""
    reference_state: Literal["carried", "stored"] = "carried"
    """The recurrent state from which the reference runs over a fragment: its own, carried along the stream where the
    fragment before is at hand, else the one that the actor stored; or always the stored one."""
    entropy_bonus_coef: float = live(0.0)
    """Weight of the entropy bonus, >= 0. Seeds: 0.0."""
    entropy_schedule: list[list[float]] = live([])
    """Points [share of the run, factor on the entropy bonus], as `learning_rate_schedule`."""
    target_kl: float | None = live(None)
    """Epochs end for the iteration once the mean KL(behaviour ‖ current) of an optimizer step exceeds 1.5 times this,
    > 0, before that step is taken; None never. Not during `vf_warmup`, in which the policy stands still."""
    burn_in: int = 0
    """Steps at the start of each fragment that only warm a recurrent state up under the current weights and are not
    trained on, >= 0; fewer where an episode starts among them, which needs none. `context_length` counts from there on.
    A policy without memory spends none."""
    log_ratio_range: float = live(50.0)
    """The log importance ratio is clamped to ± this, > 0. Seeds: 50."""
    normalize_advantage_full_batch: bool = True
    """Normalise advantages over the whole iteration, all ranks; otherwise not at all. Seeds: True."""
    use_normalized_vf: bool = True
    """Train the value head on targets normalised by running statistics. Seeds: True."""
    use_amp: bool = False
    """Train in mixed precision, in `amp_dtype`. Seeds: absent."""
    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Dtype of `use_amp` below the heads, in every pass of the learner; heads, values and losses stay float32. float16
    scales the loss. Actors compute in `rollout_config.worker_config.dtype`: where that differs, the importance ratio is
    not exactly 1 before the first update."""
    compile: bool = False
    """Run the policy by `torch.compile`; where that fails, a log line says so and it runs as it is."""
    inference_batch_size_per_gpu: int = 0
    """Fragments per forward pass that recomputes values; 0 means `batch_size_per_gpu`."""
    num_readers: int = 1
    """Threads per rank that read fragments, and as many that unpack observations, >= 1. Seeds: 4."""
    num_cpus_per_reader: float = 0.1
    """Cores that a reader takes, >= 0: what all readers of a rank take, rounded, is kept free of actors where those are
    pinned. Seeds: 0.1."""
    prefetch_batches: int = 1
    """Iterations leased ahead while one trains, >= 0: none, or one, which is also what more than 1 means. Seeds: 2, of
    micro-batches."""
    decode_cache_bytes: int = 2**30
    """Unpacked observations and recurrent states that a rank keeps, bytes, >= 0, shared by the iteration in training
    and the one fetched ahead. Of an iteration that does not fit, minibatches are drawn from within pools of fragments
    that do, which are unpacked again for each epoch."""
    save_interval: int = live(10)
    """Keep a checkpoint every so many iterations; 0 keeps only `latest` and the last. Seeds: 10."""
    keep_interval: int = live(0)
    """Of the kept checkpoints, multiples of this stay for ever; 0 keeps only the newest. Seeds: 40."""
    keep_best: bool = live(True)
    """Keep the checkpoint with the best mean return besides, as `best`: of those that are written, by the window of
    `episode_statistics_config`, once it has seen 20 episodes."""
    latest_min_interval_s: float = live(0.0)
    """Least time between rolling `latest` checkpoints, seconds, >= 0: what a crash may abandon. 0 writes one after
    every iteration that finds the last one written."""
    record_video_interval: int = live(0)
    """Film one whole episode every so many policy versions; 0 never. Seeds: 2."""
    fix_decoder: bool = False
    """Freeze everything but the policy's `action_head` and `value_head`, the statistics of observations included.
    Seeds: False."""
    enable_ref_update: bool = False
    """Let the reference follow the policy, every `ref_update_interval` iterations. Seeds: False."""
    ref_update_interval: int = 100
    """Iterations after which the reference becomes the policy of the moment, >= 1."""
    wire_dtype: Literal["keep", "bfloat16"] = "keep"
    """Dtype of the policy's float32 parameters on their way to actors and at parameters: as they are, or rounded to
    bfloat16, which halves their bytes; actors then act by weights that are not quite the learner's, so that the
    importance ratio is not exactly 1 before the first update. Normaliser statistics, all other buffers and the policy's
    `exact_tensors` are never rounded, nor are the learner's own weights and its checkpoints."""
    resume: str | None = None
    """Checkpoint (also `.../checkpoints/best` or `latest`) or exported version from whose weights a new run starts;
    `auto`: go on with the run that `--run-dir` holds, start one where it holds none, so that one command serves every
    launch. A run that has checkpoints of its own goes on from its newest, whatever this says. Seeds: None."""
    resume_optimizer: bool = True
    """Restore the optimizer on resume; an exported version has none. Seeds: True."""
    save_path: str | None = None
    """Directory of checkpoints, relative to the run directory; None means `checkpoints`. Seeds: "output"."""
    max_bad_steps: int = 10
    """Non-finite steps in a row after which the run stops, >= 1."""
    parity_bound: float | None = None
    """Largest difference between what an actor recorded and what the same weights say here, in ln π and in normalised
    values, > 0; beyond it the run stops and says what to suspect. None takes the bound of
    `worker_config.dtype` or `state_dtype`, the larger one."""
    rank_timeout_s: float = 600.0
    """Longest that ranks wait for each other while they train before they end and start again, seconds, > 0. How long
    fragments or a peer are waited for is not bounded by it."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        for key in (
            "num_iterations batch_size_per_gpu batches_per_iteration gradient_accumulation epochs_per_iteration "
            "context_length num_readers max_bad_steps num_workers ref_update_interval"
        ).split():
            at_least(f"train_config.{key}", getattr(self, key), 1)
        for key in (
            "vf_warmup weight_decay ppo_policy_coef ppo_vf_coef kl_divergence_coef_rho entropy_bonus_coef "
            "save_interval keep_interval latest_min_interval_s torch_threads inference_batch_size_per_gpu "
            "record_video_interval burn_in decode_cache_bytes num_cpus_per_reader prefetch_batches"
        ).split():
            at_least(f"train_config.{key}", getattr(self, key), 0)
        whole_or_share("train_config.num_gpus_per_worker", self.num_gpus_per_worker)
        for key in (
            "learning_rate adam_eps ppo_clip max_grad_norm log_ratio_range importance_weight_cap vtrace_rho_bar "
            "vtrace_c_bar rank_timeout_s"
        ).split():
            above(f"train_config.{key}", getattr(self, key), 0)
        for key in ("discount", "gae_lambda", "coef_rho_decay"):
            within(f"train_config.{key}", getattr(self, key), 0, 1)
        if self.target_kl is not None:
            above("train_config.target_kl", self.target_kl, 0)
        for key in ("learning_rate_schedule", "entropy_schedule"):
            points(f"train_config.{key}", getattr(self, key))
        if self.enable_ref_update and not self.kl_divergence_coef_rho:
            raise ConfigError(
                "train_config.enable_ref_update needs a reference: "
                "train_config.kl_divergence_coef_rho must be > 0, got 0"
            )
        divides(
            "train_config.batches_per_iteration",
            self.batches_per_iteration,
            "train_config.gradient_accumulation",
            self.gradient_accumulation,
        )
        if self.parity_bound not in (None, math.inf):
            above("train_config.parity_bound", self.parity_bound, 0)

    @property
    def fragments_per_iteration(self) -> int:
        """Fragments that one iteration trains on, over all ranks."""
        return self.num_workers * self.batch_size_per_gpu * self.batches_per_iteration
