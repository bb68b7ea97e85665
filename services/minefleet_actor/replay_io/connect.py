"""Connects an actor to a shard of replay."""

import threading
from collections.abc import Callable
from functools import partial

from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Shard
from minefleet.v1.replay_service_pb2 import ActorProgress
from minefleet_actor.replay_io.permits import RolloutPermits
from minefleet_actor.replay_io.stream_router import ShardConnection
from minefleet_actor.replay_io.uploader import FragmentUploader
from minefleet_runtime.address_reachability import is_loopback
from minefleet_runtime.role_context import RoleContext


def connect(
    context: RoleContext,
    run_id: str,
    shard: Shard,
    *,
    version: Callable[[], int],
    progress: Callable[[int], ActorProgress],
    abandoned: threading.Event,
    wake: Callable[[], None],
) -> ShardConnection:
    """Makes the permits and the uploader of a shard; nothing is sent yet.

    Args:
        context: The role.
        run_id: The run that fragments are made for.
        shard: The shard.
        version: The version in use.
        progress: Of a shard, by its index: counts that go along with fragments.
        abandoned: Ends the uploader's retries, which go on while the role is asked to stop.
        wake: Called when a permit or room that was missing is there.
    """
    rollout = context.run.config.rollout_config
    buffer = rollout.replay_buffer_config
    permits = RolloutPermits(
        replay_client(context, shard, run_id, context.stopping),
        version=version,
        granted=wake,
        renew_s=buffer.grant_timeout_s / 3,
        max_staleness=buffer.max_staleness,
    )
    uploader = FragmentUploader(
        replay_client(context, shard, run_id, abandoned),
        capacity=rollout.queue_size,
        schema_fingerprint=context.run.fragment_schema.fingerprint,
        compression=packing_for(buffer.compression, shard),
        state_dtype=rollout.state_dtype,
        progress=partial(progress, shard.index),
        sent=wake,
    )
    return ShardConnection(name=shard.name, permits=permits, uploader=uploader)


def replay_client(context: RoleContext, shard: Shard, run_id: str, stopping: threading.Event) -> ReplayClient:
    """A client of one shard of replay that waits until `stopping`."""
    return ReplayClient(
        shard.endpoint.address,
        identity=context.run.identity(context.role),
        credentials=context.credentials,
        position=Position(run_id=run_id),
        stopping=stopping,
        report=context.status.set_waiting,
    )


def packing_for(compression: str, shard: Shard) -> str:
    """The packing of `encode` for a shard.

    On one host, zstd takes longer to save a byte of what it does not halve than the byte takes to be carried.
    """
    if compression != "auto":
        return compression
    return "halving" if is_loopback(shard.endpoint.address.rpartition(":")[0]) else "zstd"
