"""The life of an actor process: prepare, act, drain."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from minefleet.core.repro_command import reproduction
from minefleet.v1 import status_service_pb2
from minefleet_actor.build import ActorParts, assemble
from minefleet_actor.metrics.prometheus import REASONS
from minefleet_actor.pool import EnvStartError
from minefleet_runtime.process_setup import switch_threads_often
from minefleet_runtime.role_context import RoleContext

logger = logging.getLogger(__name__)

SHOWN_HOSTS = 8
"""Hosts that the status names."""
REPORT_S = 0.25
"""Time between two reports, seconds."""


@contextmanager
def lifetime(context: RoleContext) -> Iterator[RoleContext]:
    """The context of one of the actors that this process is, one after another: its threads and metrics end with it."""
    own, metrics = threading.Event(), CollectorRegistry()

    def stop_with_the_role() -> None:
        context.stopping.wait()
        own.set()

    threading.Thread(target=stop_with_the_role, daemon=True).start()
    context.registry.register(cast(Collector, metrics))
    try:
        yield replace(context, stopping=own, registry=metrics)
    finally:
        own.set()
        context.registry.unregister(cast(Collector, metrics))


def prepare(context: RoleContext) -> ActorParts:
    """Builds the actor and starts its environments."""
    context.status.set_state(status_service_pb2.STATE_WAITING, "waiting for the first weights")
    parts = assemble(context)
    context.status.set_run(parts.follower.run_id)
    context.status.set_state(status_service_pb2.STATE_STARTING, "starting environments")
    try:
        parts.pool.start()
    except EnvStartError as error:
        raise EnvStartError(f"{error}\n{reproduction([str(context.run.directory)])}") from error
    return parts


def act(context: RoleContext, parts: ActorParts) -> None:
    """Acts until asked to stop or until another actor must go on, then drains."""
    switch_threads_often()
    parts.threads.start("weights", partial(parts.follower.run, parts.pool.wake))
    parts.threads.start("inference", parts.batcher.run)
    for shard in parts.router:
        parts.threads.start(f"{shard.name}-permits", shard.permits.run)
        parts.threads.start(f"{shard.name}-uploader", shard.uploader.run)
    if parts.camera is not None:
        parts.threads.start("camera", parts.camera.run)
    try:
        parts.actor.start()
        due_s = time.monotonic()
        while not (context.stopping.is_set() or parts.actor.is_outdated):
            parts.threads.check()
            parts.actor.turn()
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + REPORT_S
                report(context, parts)
                parts.view.rest()
        if context.stopping.is_set():
            context.status.set_state(status_service_pb2.STATE_DRAINING)
        parts.actor.drain()
        ship_the_rest(context, parts)
    finally:
        parts.pool.close()


def report(context: RoleContext, parts: ActorParts) -> None:
    """Sets the actor's status."""
    held = parts.actor.is_blocked()
    state = status_service_pb2.STATE_PAUSED if held else status_service_pb2.STATE_RUNNING
    reasons = parts.actor.blocked().most_common(1) if held else []
    detail = "".join(REASONS[reason] for reason, _ in reasons)
    if context.run.config.rollout_config.worker_config.hosted:
        detail = "; ".join([detail] * held + [hosts_text(parts.pool.hosts, parts.pool.num_slots)])
    context.status.set_state(state, detail)
    context.status.set_stats(parts.actor.stats())


def hosts_text(hosts: Mapping[str, int], slots: int) -> str:
    """The hosts that play, for people: "hosts: a 8, b 4; 4 slots wait for one"."""
    names = [f"{name} {count}" for name, count in list(hosts.items())[:SHOWN_HOSTS]]
    more = [f"{len(hosts) - SHOWN_HOSTS} more"] if len(hosts) > SHOWN_HOSTS else []
    waiting = slots - sum(hosts.values())
    text = f"hosts: {', '.join(names + more) or 'none'}"
    return f"{text}; {waiting} slots wait for one" if waiting else text


def ship_the_rest(context: RoleContext, parts: ActorParts) -> None:
    """Sends what is queued; once asked to stop, at most for `drain_s`."""
    until = time.monotonic() + context.run.config.services.drain_s
    if parts.camera is not None:
        parts.camera.close()
        if not parts.threads.join("camera", context.run.config.services.drain_s / 2):
            parts.camera.give_up()
    for shard in parts.router:
        shard.permits.close()
        shard.uploader.close()
    uploaders = [f"{shard.name}-uploader" for shard in parts.router]
    while not (context.stopping.is_set() or all(parts.threads.join(name, REPORT_S) for name in uploaders)):
        until = time.monotonic() + context.run.config.services.drain_s
    if not all(parts.threads.join(name, max(0.0, until - time.monotonic())) for name in uploaders):
        parts.abandoned.set()
        logger.warning("replay did not take everything within drain_s; what was not acknowledged is given up")
    parts.threads.check()
