"""The configuration tree: frozen dataclasses. OmegaConf stays in `minefleet.config.load`."""

from minefleet.config.env import EnvConfig, WrappersConfig
from minefleet.config.policy import PolicyConfig
from minefleet.config.rollout import (
    DatabaseConfig,
    EpisodeStatisticsConfig,
    ReplayBufferConfig,
    RolloutConfig,
    WorkerConfig,
)
from minefleet.config.root_config import (
    EndpointConfig,
    FleetConfig,
    LoggerConfig,
    ServicesConfig,
    StopConfig,
    UploadConfig,
)
from minefleet.config.train import TrainConfig

__all__ = [
    "DatabaseConfig",
    "EndpointConfig",
    "EnvConfig",
    "EpisodeStatisticsConfig",
    "FleetConfig",
    "LoggerConfig",
    "PolicyConfig",
    "ReplayBufferConfig",
    "RolloutConfig",
    "ServicesConfig",
    "StopConfig",
    "TrainConfig",
    "UploadConfig",
    "WorkerConfig",
    "WrappersConfig",
]
