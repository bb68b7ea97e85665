"""Environments behind numbered slots: in supervised processes of their own, in this one, or on hosts that dial in."""

from minefleet_actor.pool.base_pool import Pool
from minefleet_actor.pool.env_pool import EnvPool
from minefleet_actor.pool.inline import InlinePool
from minefleet_actor.pool.pool_results import EnvGaveUpError, EnvStartError, EpisodeEnd, Failure, Kind, Ready, Slots
from minefleet_actor.pool.remote_env_pool import HostedPool

__all__ = [
    "EnvGaveUpError",
    "EnvPool",
    "EnvStartError",
    "EpisodeEnd",
    "Failure",
    "HostedPool",
    "InlinePool",
    "Kind",
    "Pool",
    "Ready",
    "Slots",
]
