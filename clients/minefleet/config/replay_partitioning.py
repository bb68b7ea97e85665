"""Replay in several shards: how many there are, and which part of everything is whose."""

from dataclasses import replace

from minefleet.config.field_validators import at_least
from minefleet.config.root_config import EndpointConfig, FleetConfig
from minefleet.core.errors import ConfigError

NUM_SHARDS = "rollout_config.replay_buffer_config.database_config.num_shards"
MIN_SHARD_BYTES = 2**20
"""`max_bytes` of one shard."""


def share(total: int, shards: int, index: int) -> int:
    """One shard's part of `total` things. Where they cannot be split evenly, the first shards get one more."""
    return total // shards + (index < total % shards)


def fragments_per_iteration(config: FleetConfig, index: int) -> int:
    """The fragments of an iteration that one shard provides."""
    return share(config.train_config.fragments_per_iteration, len(config.services.replay), index)


def spread(config: FleetConfig) -> FleetConfig:
    """Makes `services.replay` and `num_shards` agree: one endpoint per shard.

    Raises:
        ConfigError: If the two contradict each other, or there are too many shards for the rest of the configuration.
    """
    buffer = config.rollout_config.replay_buffer_config
    endpoints = _endpoints(config.services.replay, buffer.database_config.num_shards)
    _check(config, len(endpoints))
    database = replace(buffer.database_config, num_shards=len(endpoints))
    rollout = replace(config.rollout_config, replay_buffer_config=replace(buffer, database_config=database))
    return replace(config, services=replace(config.services, replay=endpoints), rollout_config=rollout)


def _endpoints(given: list[EndpointConfig], shards: int) -> list[EndpointConfig]:
    if shards in (1, len(given)):
        return given
    if len(given) > 1:
        raise ConfigError(
            f"services.replay lists {len(given)} shards, but {NUM_SHARDS} is {shards}; drop one of the two"
        )
    for key in ("address", "metrics_address"):
        address = getattr(given[0], key)
        if not address.endswith(":0"):
            raise ConfigError(
                f"services.replay.{key}={address} cannot serve {shards} shards ({NUM_SHARDS}); give it port 0, or give "
                f"every shard its own with services.replay[0].{key}=... to services.replay[{shards - 1}].{key}=..."
            )
    return given * shards


def _check(config: FleetConfig, shards: int) -> None:
    buffer, fragments = config.rollout_config.replay_buffer_config, config.train_config.fragments_per_iteration
    if fragments < shards:
        raise ConfigError(
            f"{NUM_SHARDS} must be <= the fragments of an iteration, so that every shard has one: {fragments} "
            f"(train_config.num_workers * batch_size_per_gpu * batches_per_iteration), got {shards}"
        )
    workers, envs = config.rollout_config.num_rollout_workers, config.rollout_config.worker_config.num_envs
    if workers and workers * envs < shards:
        raise ConfigError(
            f"{NUM_SHARDS} must be <= the environments of all actors, so that every shard has a stream: "
            f"{workers * envs} (rollout_config.num_rollout_workers * worker_config.num_envs), got {shards}"
        )
    at_least("rollout_config.replay_buffer_config.max_bytes", buffer.max_bytes, shards * MIN_SHARD_BYTES)
