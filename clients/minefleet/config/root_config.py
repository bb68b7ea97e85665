"""The whole configuration: one tree for all roles."""

from dataclasses import dataclass, field
from typing import Any

from minefleet.config.env import EnvConfig
from minefleet.config.field_validators import above, at_least, finite, host_port
from minefleet.config.live_field import live
from minefleet.config.policy import PolicyConfig
from minefleet.config.rollout import RolloutConfig
from minefleet.config.security import SecurityConfig
from minefleet.config.train import TrainConfig
from minefleet.core.errors import ConfigError

OUR_TRAINER = "PPOTrainer"
OUR_TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Each is switched on by a key of its name."""
WANDB_KEYS = tuple(
    (
        "entity group job_type notes tags mode anonymous force reinit save_code settings allow_val_change "
        "config_exclude_keys config_include_keys fork_from monitor_gym resume_from sync_tensorboard"
    ).split()
)
"""Arguments of `wandb.init`, except those with a key of their own and those that the run decides: id, resume, dir,
config."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopConfig:
    """When the run ends, besides `train_config.num_iterations`. 0 or None switches a condition off.

    These are judged when replay has acked an iteration; up to `max_staleness` + 1 more may be trained by then.
    """

    env_steps: int = live(0)
    """Environment steps."""
    minutes: float = live(0.0)
    """Wall-clock minutes of this launch, restarts of the learner included; `--resume` begins a new launch, and where no
    launcher starts the learner, its start does."""
    episode_return: float | None = live(None)
    """Mean return of the last episodes, as many as `episode_statistics_config.window`."""
    starved_iterations: int = live(0)
    """Iterations in a row in which a task has starved: less than half as large a share of the trained steps as of the
    played ones, or environments that are too slow to be trained on. It is said, however many they are."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        at_least("stop.env_steps", self.env_steps, 0)
        at_least("stop.minutes", self.minutes, 0)
        at_least("stop.starved_iterations", self.starved_iterations, 0)
        if self.episode_return is not None:
            finite("stop.episode_return", self.episode_return)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointConfig:
    """The address of one service."""

    address: str = "127.0.0.1:0"
    """`host:port` at which callers find it; port 0 means a free one."""
    listen: str = ""
    """`host:port` to listen on where that is another one, as in a container: "0.0.0.0:7000"."""
    metrics_address: str = "127.0.0.1:0"
    """`host:port` of /metrics, /healthz and /readyz; port 0 means a free one."""

    def __post_init__(self) -> None:
        """Rejects what is no address."""
        for key in ("address", "listen", "metrics_address"):
            value = getattr(self, key)
            if value or key != "listen":
                host_port(f"services.*.{key}", value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServicesConfig:
    """The addresses of the services."""

    replay: list[EndpointConfig] = field(default_factory=lambda: [EndpointConfig()])
    """One per shard. A single one with port 0 serves as many shards as `num_shards` says."""
    parameters: EndpointConfig = field(default_factory=EndpointConfig)
    learner: EndpointConfig = field(default_factory=EndpointConfig)
    actor: EndpointConfig = field(default_factory=EndpointConfig)
    """Of every actor: give ports only where each has a host, or a container, of its own."""
    drain_s: float = 10.0
    """Longest drain after SIGTERM, seconds, > 0."""
    security: SecurityConfig = field(default_factory=SecurityConfig)

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        above("services.drain_s", self.drain_s, 0)
        if not self.replay:
            raise ConfigError("services.replay must list at least one endpoint, got none")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggerConfig:
    """Destinations of metrics besides `metrics.jsonl`."""

    project: str = "minefleet"
    """wandb's project, MLflow's experiment. Seeds: "minestudio_online"."""
    name: str = ""
    """Run name; empty means the run directory's. Seeds: "bow_cow"."""
    wandb: bool = False
    """Log to wandb, offline when there is no key or no server answers."""
    tensorboard: bool = False
    """Write TensorBoard files into the run directory."""
    mlflow: bool = False
    """Log to MLflow, where the variable MLFLOW_TRACKING_URI says."""
    trackers: list[str] = field(default_factory=list)
    """More trackers, by the names of their entry points in the group `minefleet.trackers`."""
    init: dict[str, Any] = field(default_factory=dict)
    """Other keyword arguments of `wandb.init`, such as `entity`, `group` or `tags`; they may stand beside `project`,
    too. `mode` goes before the environment's WANDB_MODE."""

    def __post_init__(self) -> None:
        """Rejects what `wandb.init` does not take, or the run decides."""
        for key in self.init:
            if key not in WANDB_KEYS:
                raise ConfigError(f"logger_config.init.{key} must be one of {', '.join(WANDB_KEYS)}")

    @property
    def tracker_names(self) -> list[str]:
        """The names of the trackers that are asked for."""
        ours = [name for name in OUR_TRACKERS if getattr(self, name)]
        return ours + [name for name in self.trackers if name not in ours]


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadConfig:
    """Snapshots of the run elsewhere, from which it goes on when its machine is lost: `minefleet restore`."""

    target: str = ""
    """Place of this run's snapshots, as fsspec names it: `s3://BUCKET/RUN`, `file:///DIR`; empty for none. Credentials
    are in the environment of the learner."""
    min_interval_s: float = 60.0
    """Least time between two snapshots, seconds, >= 0: what the loss of a machine may abandon."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        at_least("upload_config.min_interval_s", self.min_interval_s, 0)
        if self.target and "://" not in self.target:
            raise ConfigError(f"upload_config.target must be a URL such as s3://BUCKET/RUN, got {self.target!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetConfig:
    """Everything that can be set."""

    trainer_name: str = OUR_TRAINER
    """The trainer: `PPOTrainer`, or a `minefleet_learner.BaseTrainer` of yours as `package.module:Class` or
    `path/to/file.py:Class`. Seeds: "PPOTrainer"."""
    detach_rollout_manager: bool = False
    """Leave replay, parameters and actors running when a trainer started by `start_trainer` ends. Seeds: True."""
    seed: int = 0
    """Seeds everything that can be seeded, per stream and episode, in [0, 2**63)."""
    eval_interval: int = 0
    """Evaluate every so many iterations, on environments of its own; 0 never."""
    eval_episodes: int = 10
    """Episodes per evaluation, >= 1."""
    eval_sample: bool = False
    """Draw the actions of evaluations as in training; otherwise the likeliest are taken."""
    path_map: dict[str, str] = field(default_factory=dict)
    """Paths of files on this machine: beginnings of paths, and what replaces them, as `--map-path OLD=NEW` adds. It
    holds for what generators load by `load_vpt_policy`, and for `save_path`, `resume`, `video_output_dir`, the path of
    `database_config`, and `model_path` and `weights_path` of `policy.kwargs` in CONFIG; not for what overrides say."""
    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rollout_config: RolloutConfig = field(default_factory=RolloutConfig)
    train_config: TrainConfig = field(default_factory=TrainConfig)
    logger_config: LoggerConfig = field(default_factory=LoggerConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    upload_config: UploadConfig = field(default_factory=UploadConfig)
    services: ServicesConfig = field(default_factory=ServicesConfig)

    @property
    def least_steps(self) -> int:
        """Steps that a fragment has at least when it is cut for its age: one of them is trained on."""
        rollout = self.rollout_config
        return min(rollout.fragment_length, max(rollout.min_fragment_length, self.train_config.burn_in + 1))

    def fraction_done(self, iteration: int, env_steps: int, seconds: float) -> float:
        """Progress towards the nearest bound, in [0, 1]. A wanted return cannot be foreseen and does not count."""
        bounds = (self.train_config.num_iterations, self.stop.env_steps, 60 * self.stop.minutes)
        reached = zip((iteration, env_steps, seconds), bounds, strict=True)
        return min(1.0, max(done / bound for done, bound in reached if bound))

    def spent(self, iteration: int, env_steps: int) -> str:
        """Names the bound that a run has reached after so much training, or ""."""
        if self.stop.env_steps and env_steps >= self.stop.env_steps:
            return "env_steps"
        return "num_iterations" if iteration >= self.train_config.num_iterations else ""

    def __post_init__(self) -> None:
        """Rejects combinations that cannot work."""
        if self.trainer_name != OUR_TRAINER and ":" not in self.trainer_name:
            raise ConfigError(
                f"trainer_name must be {OUR_TRAINER}, module:Class or file.py:Class, got {self.trainer_name!r}"
            )
        if self.trainer_name != OUR_TRAINER and self.train_config.num_workers > 1:
            raise ConfigError(
                f"train_config.num_workers must be 1 with a trainer of your own, got {self.train_config.num_workers}: "
                f"several ranks train by trainer_name={OUR_TRAINER} only"
            )
        at_least("seed", self.seed, 0)
        at_least("eval_interval", self.eval_interval, 0)
        at_least("eval_episodes", self.eval_episodes, 1)
        length, burn_in = self.rollout_config.fragment_length, self.train_config.burn_in
        if burn_in >= length:
            raise ConfigError(
                f"train_config.burn_in must be < rollout_config.fragment_length = {length}, got {burn_in}: "
                "no step would be left to train on"
            )
        worker = self.rollout_config.worker_config
        if self.env.python and worker.is_inline:
            raise ConfigError(
                "env.python needs processes of environments: rollout_config.worker_config.envs_per_process must be >= 1"
            )
        for key in ("hosted", "deterministic", "restart_interval"):
            if self.env.batched and getattr(worker, key):
                raise ConfigError(
                    f"rollout_config.worker_config.{key} cannot be had with env.batched: it takes single environments"
                )
        replay = self.rollout_config.replay_buffer_config
        if self.env.task_sampling == "success" and (replay.balance == "task" or not self.env.tasks):
            raise ConfigError(
                "env.task_sampling=success needs env.tasks, and not rollout_config.replay_buffer_config.balance=task: "
                "that gives every task the same share"
            )
        at_least(
            "rollout_config.replay_buffer_config.max_chunks",
            replay.max_chunks,
            -(-self.train_config.fragments_per_iteration // replay.fragments_per_chunk),
        )
