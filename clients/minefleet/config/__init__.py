"""The configuration tree: frozen dataclasses. OmegaConf stays in `minefleet.config.load`."""

from minefleet.config.fleet import (
    EndpointConfig,
    EnvConfig,
    FleetConfig,
    LoggerConfig,
    PolicyConfig,
    ServicesConfig,
    StopConfig,
)
from minefleet.config.rollout import DatabaseConfig, ReplayBufferConfig, RolloutConfig, WorkerConfig
from minefleet.config.train import TrainConfig

__all__ = [
    "DatabaseConfig",
    "EndpointConfig",
    "EnvConfig",
    "FleetConfig",
    "LoggerConfig",
    "PolicyConfig",
    "ReplayBufferConfig",
    "RolloutConfig",
    "ServicesConfig",
    "StopConfig",
    "TrainConfig",
    "WorkerConfig",
]
