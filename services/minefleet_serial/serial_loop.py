"""Builds all roles in this process and alternates actor and learner."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from minefleet.core.errors import ConfigError
from minefleet.rpc.retrier import StoppedError
from minefleet.v1 import status_service_pb2
from minefleet_actor.build import ActorParts, assemble
from minefleet_learner.trainer_loader import build_trainer
from minefleet_parameters.__main__ import body as serve_parameters
from minefleet_replay.__main__ import body as serve_replay
from minefleet_runtime.grpc_server.serve import serving
from minefleet_runtime.role_context import RoleContext
from minefleet_runtime.role_status import StatusTracker


def run_in_order(context: RoleContext) -> None:
    """Alternates actor and learner until the run is over or this process is asked to stop."""
    if len(context.run.shards) > 1:
        raise ConfigError("all roles in one process, in order, need a replay of one shard; this run has several")
    with ExitStack() as stack:
        for name, role, serve in (
            ("replay", status_service_pb2.ROLE_REPLAY, serve_replay),
            ("parameters", status_service_pb2.ROLE_PARAMETERS, serve_parameters),
        ):
            stack.enter_context(in_background(sibling(context, name, role, threading.Event()), serve))
        learner = sibling(context, "learner", status_service_pb2.ROLE_LEARNER, context.stopping)
        stack.enter_context(serving(learner, context.run.config.services.learner.address))
        actor = sibling(context, "actor-0", status_service_pb2.ROLE_ACTOR, context.stopping)
        build_trainer(context.run).fit(learner, act=partial(next, turns(actor, stack)))


def turns(context: RoleContext, stack: ExitStack) -> Iterator[None]:
    """The actor's turns, one before each of the learner's; from the second on, it fetches weights first."""
    while True:
        parts = assemble(context, inline=True)
        stack.callback(parts.pool.close)
        parts.pool.start()
        parts.actor.start()
        while act_until_held(parts, context.stopping):
            yield
            parts.follower.fetch()
        parts.actor.drain()
        for shard in parts.router:
            shard.uploader.flush()
        parts.pool.close()
        context = replace(context, registry=CollectorRegistry())


def act_until_held(parts: ActorParts, stopping: threading.Event) -> bool:
    """Takes turns, the first with the newest weights, until replay refuses a permit and all slots are blocked.

    Returns:
        Whether that is so; otherwise the newest weights take another actor.
    """
    (shard,) = parts.router
    parts.actor.turn(wait_s=0.0)
    is_refused = False
    while not (parts.actor.is_outdated or (is_refused and parts.actor.is_blocked())):
        if stopping.is_set():
            raise StoppedError("stopped while acting")
        is_refused = shard.permits.reserve() is not None
        parts.actor.turn(wait_s=0.0)  # Slots that have just been granted a chunk are blocked until it.
        shard.uploader.flush()
    return not parts.actor.is_outdated


def sibling(
    context: RoleContext, name: str, role: status_service_pb2.Role.ValueType, stopping: threading.Event
) -> RoleContext:
    """The context of another role of the same run."""
    return replace(
        context, name=name, role=role, status=StatusTracker(), registry=CollectorRegistry(), stopping=stopping
    )


@contextmanager
def in_background(context: RoleContext, serve: Callable[[RoleContext], None]) -> Iterator[None]:
    """Serves a role in a thread; at the end drains it and removes its card."""
    thread = threading.Thread(target=serve, args=(context,), name=context.name)
    thread.start()
    try:
        yield
    finally:
        context.stopping.set()
        thread.join()
        context.withdraw()
