"""Configuration of actors and replay: `rollout_config` of the seeds."""

import math
from dataclasses import dataclass, field
from typing import Literal

from minefleet.config.field_validators import above, at_least, whole_or_share, within
from minefleet.config.live_field import live
from minefleet.core.errors import ConfigError

MIN_QUEUE = 8
"""Minimum of finished fragments that an actor buffers by default."""
CANARY_VERSIONS = 2
"""With `canary_share`, most slots act by the version that is so many versions behind the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """One actor: a pool of environments and the inference over it."""

    num_envs: int = live(8)
    """Environments per actor, >= 1. Seeds: 2-16."""
    envs_per_process: int = 1
    """Environments that share one process, >= 0. 1 isolates crashes; fast environments gain from more. 0: all play in
    the actor's own process, the fastest way for those that take microseconds. One that hangs or crashes the process
    takes the actor with it then."""
    hosted: bool = False
    """Leave the environments to hosts that dial in: `minefleet host`, or games that speak its protocol."""
    batch_size: int = 0
    """Largest inference batch; 0 means `num_envs`. Never waited for: what is ready is computed. Seeds: 1-8."""
    min_batch_size: int = 0
    """Ready environments that start a batch before `batch_timeout_s` has passed; 0 means as many as share a process."""
    batch_timeout_s: float = 0.003
    """Longest wait of a ready environment for others to join its batch, seconds, >= 0; 0 never waits."""
    device: str = "auto"
    """Torch device of the inference: `auto` takes CUDA when there is one, else the CPU."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the forward pass; the weights and what is recorded stay float32. On a GPU `float32` is exact:
    without TF32, which would differ from the learner's by more than the parity bound. bfloat16 is the fast one."""
    compile: bool = False
    """Compile the policy by `torch.compile`; where that fails the policy runs as it is, and says so."""
    cuda_graphs: bool = False
    """Replay the forward pass as a CUDA graph; elsewhere than on CUDA the policy runs as it is, and says so."""
    torch_threads: int = 0
    """Threads of one forward pass on the CPU; 0 means `num_cpus_per_worker`, rounded up."""
    greedy: bool = False
    """Act with the mode of the policy instead of a sample."""
    deterministic: bool = False
    """Make the same fragments whenever the seed, the weights and the environments are the same: every environment is
    waited for at each step. Slow, for tests and debugging."""
    start_timeout_s: float = 300.0
    """Longest start of an environment, seconds, > 0. Minecraft takes minutes."""
    reset_timeout_s: float = 300.0
    """Longest reset, seconds, > 0."""
    step_timeout_s: float = 60.0
    """Longest step, seconds, > 0."""
    restart_interval: float = live(0.0)
    """Make each environment anew between episodes every so many seconds, not all at once, >= 0; 0 never. Its process is
    started anew if it has that for itself. Seeds: 3600."""
    max_rss_bytes: int = live(0)
    """Resident memory that a process of environments and all that it has started may take together, in bytes, >= 0; 0
    sets no limit. It is looked at every second. Beyond, environments are made anew between episodes, as for
    `restart_interval`; beyond 1.25 times that the process is killed at once, which is a failure."""
    max_consecutive_failures: int = 8
    """Failures in a row, without one good episode, after which a slot cools down, >= 1. Before that it pauses for 0.1 s
    after the first failure and twice as long after each further one."""
    circuit_breaker_cooldown_s: float = 300.0
    """Time that a slot cools down before its environment is tried once again, seconds, > 0. When all do, the actor
    gives up."""
    max_resets_at_once: int = 0
    """Processes of environments that may start or reset some at the same time, per actor, >= 0; 0 sets no limit. First
    come, first served; a start and the first reset after it count as one."""
    start_jitter_s: float = 0.0
    """Time over which the environments' first episodes begin, counted from when the first environment is made, seconds,
    >= 0: spread, they do not all end together."""
    deaths_kept: int = 200
    """Deaths of environments that each actor keeps in the run directory, for `minefleet deaths`, >= 0; 0 keeps none.
    Beyond, and beyond 256 MiB, the oldest of the largest group goes."""
    video_fps: int = 20
    """Frame rate of videos, steps per second, >= 1. Seeds: 20."""
    video_output_dir: str = "videos"
    """Directory of the actors' videos, relative to the run directory; the newest 100 are kept."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        for key in ("num_envs", "max_consecutive_failures", "video_fps"):
            at_least(f"rollout_config.worker_config.{key}", getattr(self, key), 1)
        for key in ("envs_per_process", "batch_size", "min_batch_size", "batch_timeout_s", "torch_threads"):
            at_least(f"rollout_config.worker_config.{key}", getattr(self, key), 0)
        for key in ("start_timeout_s", "reset_timeout_s", "step_timeout_s", "circuit_breaker_cooldown_s"):
            above(f"rollout_config.worker_config.{key}", getattr(self, key), 0)
        for key in ("restart_interval", "max_rss_bytes", "max_resets_at_once", "start_jitter_s", "deaths_kept"):
            at_least(f"rollout_config.worker_config.{key}", getattr(self, key), 0)
        for key in ("hosted", "restart_interval", "max_rss_bytes", "max_resets_at_once", "start_jitter_s"):
            if self.is_inline and getattr(self, key):
                raise ConfigError(
                    f"rollout_config.worker_config.{key} needs processes of environments: envs_per_process must be >= 1"
                )

    @property
    def is_inline(self) -> bool:
        """Whether environments play in the actor's own process."""
        return self.envs_per_process == 0

    @property
    def envs_together(self) -> int:
        """The environments that share one process."""
        return self.envs_per_process or self.num_envs

    @property
    def largest_batch(self) -> int:
        """The largest inference batch, in environments."""
        return min(self.batch_size or self.num_envs, self.num_envs)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseConfig:
    """The location of replay's store."""

    path: str = "replay"
    """Directory of the store, relative to the run directory."""
    num_shards: int = 1
    """Replay processes, >= 1, at most the chunks of an iteration. Every iteration takes from each, and an environment
    plays for one of them, so each should have several. Seeds: 8 (files of one process there)."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        at_least("rollout_config.replay_buffer_config.database_config.num_shards", self.num_shards, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayBufferConfig:
    """Contents of replay, and limits on their use by the learner."""

    max_chunks: int = 4800
    """Chunks kept; the oldest unleased ones are evicted beyond, >= 1. Seeds: 4800."""
    max_bytes: int = 8 * 2**30
    """Disk that a replay process may take, >= 1 MiB; below 64 MiB its database may take more."""
    max_reuse: int = live(1)
    """Times that a chunk may be trained on, >= 1. Seeds: 2."""
    max_staleness: int = live(1)
    """Largest (version at use - oldest version in the chunk), in versions, >= 0. Seeds: 2."""
    fragments_per_report: int = 0
    """Log a line every so many appended fragments; 0 never. Seeds: 40."""
    fragments_per_chunk: int = 1
    """Consecutive fragments of a stream that are granted, sampled and dropped together, >= 1. Seeds: 1."""
    durability: Literal["process", "host"] = "process"
    """Failure that an acked append survives: `kill -9` of replay, or power loss too."""
    pacing: Literal["grants", "off"] = "grants"
    """Whether streams ask before they make a chunk, so that hardly anything is made in vain."""
    balance: Literal["speed", "slot", "task"] = live("speed")
    """Balances the shares of the trained steps: not at all, so that faster environments have more (`speed`), between
    all environments (`slot`), or between all tasks (`task`). For that faster ones wait, by grants."""
    task_weights: dict[str, float] = live({})
    """With `balance: task`, weights of tasks by their name, > 0; others have 1. Of two tasks, one with twice the weight
    has twice the steps."""
    balance_limit: float = live(4.0)
    """`balance` makes the run slower by this factor at most, >= 1; beyond, slow ones have fewer steps, and the run says
    so."""
    order: Literal["least_used", "uniform", "oldest"] = "least_used"
    """Order of leasing chunks."""
    grant_timeout_s: float = 60.0
    """A grant expires when its stream has been silent for so long, seconds, > 0."""
    compression: Literal["auto", "zstd", "lz4", "none"] = "auto"
    """Compression of observations by actors. `auto`: by zstd; for a replay on the same host only if that halves
    them."""
    database_config: DatabaseConfig = field(default_factory=DatabaseConfig)

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        prefix = "rollout_config.replay_buffer_config"
        for key, minimum in (("max_chunks", 1), ("max_bytes", 2**20), ("max_reuse", 1), ("max_staleness", 0)):
            at_least(f"{prefix}.{key}", getattr(self, key), minimum)
        at_least(f"{prefix}.fragments_per_chunk", self.fragments_per_chunk, 1)
        at_least(f"{prefix}.fragments_per_report", self.fragments_per_report, 0)
        above(f"{prefix}.grant_timeout_s", self.grant_timeout_s, 0)
        at_least(f"{prefix}.balance_limit", self.balance_limit, 1)
        for task, weight in self.task_weights.items():
            above(f"{prefix}.task_weights.{task}", weight, 0)
        if self.balance != "speed" and self.pacing == "off":
            raise ConfigError(f"{prefix}.balance={self.balance} needs {prefix}.pacing=grants: it lets streams wait")
        if self.task_weights and self.balance != "task":
            raise ConfigError(f"{prefix}.task_weights needs {prefix}.balance=task, got {self.balance}")

    @property
    def takes_turns(self) -> bool:
        """Whether actors wait while the learner trains."""
        return self.max_staleness == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeStatisticsConfig:
    """Summary of finished episodes. Seeds: {}."""

    window: int = 100
    """Episodes that a mean is taken over, the last ones of all and of each task, >= 1."""
    max_tasks: int = 50
    """Tasks with statistics of their own, the first that are played, >= 0; further ones are summed up as `other`."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        at_least("rollout_config.episode_statistics_config.window", self.window, 1)
        at_least("rollout_config.episode_statistics_config.max_tasks", self.max_tasks, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutConfig:
    """Collection and storage of experience."""

    num_rollout_workers: int = 1
    """Actor processes that `minefleet train` starts, >= 0. Seeds: 2."""
    num_gpus_per_worker: float = 0.0
    """GPUs of each actor that `minefleet train` starts: whole ones, or a share of one, >= 0. Those are all that it
    sees; 0.5 lets two actors see the same one, whose memory and time nobody divides. Too few are shared; where there
    are none, the launcher says so and the actors run on the CPU. 0 leaves an actor all that there are, of which it
    takes the first if `worker_config.device` says so. Seeds: 1.0."""
    num_cpus_per_worker: float = 0.0
    """Cores of each actor that `minefleet train` starts, rounded up, >= 0: so many threads compute a batch on the CPU,
    and where this machine has enough for all actors and at least one for each other role, the actor runs on cores that
    no other role uses, its threads that pack and send included. Its environments are not counted: they run anywhere,
    unless they play in its process.
    0 gives one thread; and where cores are no more than ranks of the learner and actors together, but more than ranks,
    without a GPU and with one thread each, the ranks keep as many cores as they are and the actors share the rest.
    Seeds: 1, a reservation in Ray's accounts there."""
    fragment_length: int = 64
    """Steps per fragment, >= 1. Seeds: 256."""
    min_fragment_length: int = 8
    """Steps that a fragment has at least when it is cut because its first step would become too stale, >= 1: in shorter
    ones, estimates of long returns collapse into those of one step. The rest of an episode may be shorter."""
    canary_share: float = 0.0
    """Share of the environments that act by a new version first, in [0, 1]; with 0 all act by the newest. The others
    follow two versions later, unless the policy collapses: that pauses the learner. `max_staleness` must be 2 at least,
    and is best 2 larger than without."""
    state_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format in which a policy's recurrent state before the first step of a fragment travels and is stored; the
    others halve it. Actors act on from the state as it is stored, so that the learner starts from what was acted on."""
    to_send_queue_size: int = 0
    """Finished fragments that an actor buffers before it pauses, >= 0; 0 means one per environment, and 8 at least.
    Seeds: 1-8."""
    worker_config: WorkerConfig = field(default_factory=WorkerConfig)
    replay_buffer_config: ReplayBufferConfig = field(default_factory=ReplayBufferConfig)
    episode_statistics_config: EpisodeStatisticsConfig = field(default_factory=EpisodeStatisticsConfig)

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        at_least("rollout_config.num_rollout_workers", self.num_rollout_workers, 0)
        whole_or_share("rollout_config.num_gpus_per_worker", self.num_gpus_per_worker)
        at_least("rollout_config.num_cpus_per_worker", self.num_cpus_per_worker, 0)
        at_least("rollout_config.fragment_length", self.fragment_length, 1)
        at_least("rollout_config.min_fragment_length", self.min_fragment_length, 1)
        at_least("rollout_config.to_send_queue_size", self.to_send_queue_size, 0)
        within("rollout_config.canary_share", self.canary_share, 0, 1)
        staleness = self.replay_buffer_config.max_staleness
        if self.canary_share and staleness < CANARY_VERSIONS:
            raise ConfigError(
                f"rollout_config.canary_share={self.canary_share:g} lets most environments act by weights that are "
                f"{CANARY_VERSIONS} versions old, so rollout_config.replay_buffer_config.max_staleness must be >= "
                f"{CANARY_VERSIONS}, got {staleness}; {staleness + CANARY_VERSIONS} leaves as much time as without it"
            )

    @property
    def queue_size(self) -> int:
        """Finished fragments that an actor buffers."""
        return self.to_send_queue_size or max(MIN_QUEUE, self.worker_config.num_envs)

    @property
    def torch_threads(self) -> int:
        """Threads of one forward pass on the CPU."""
        return self.worker_config.torch_threads or max(1, math.ceil(self.num_cpus_per_worker))
