"""The life of an actor process: prepare, act, drain."""

import logging
import time

from minefleet.v1 import status_service_pb2
from minefleet_actor.assembly import Parts, assemble
from minefleet_runtime.context import RoleContext

logger = logging.getLogger(__name__)


def prepare(context: RoleContext) -> Parts:
    """Builds the actor and starts its environments."""
    context.board.set(status_service_pb2.STATE_WAITING, "waiting for the first weights")
    parts = assemble(context)
    context.board.set_run(parts.follower.run_id)
    context.board.set(status_service_pb2.STATE_STARTING, "starting environments")
    parts.pool.start()
    return parts


def act(context: RoleContext, parts: Parts) -> None:
    """Acts until asked to stop, then drains."""
    parts.crew.start("weights", parts.follower.run)
    parts.crew.start("inference", parts.batcher.run)
    for lane in parts.lanes:
        parts.crew.start(f"{lane.name}-grants", lane.grants.run)
        parts.crew.start(f"{lane.name}-shipper", lane.shipper.run)
    try:
        parts.actor.start()
        while not context.stopping.is_set():
            parts.crew.check()
            parts.actor.turn()
            report(context, parts)
        context.board.set(status_service_pb2.STATE_DRAINING)
        parts.actor.drain()
        ship_the_rest(context, parts)
    finally:
        parts.pool.close()


def report(context: RoleContext, parts: Parts) -> None:
    """Says on the board how the actor fares."""
    held = parts.actor.is_held()
    state = status_service_pb2.STATE_PAUSED if held else status_service_pb2.STATE_RUNNING
    context.board.set(state, "no grant from replay" if held else "")
    context.board.figures(parts.actor.figures())


def ship_the_rest(context: RoleContext, parts: Parts) -> None:
    """Sends what is queued, at most for `drain_s`."""
    for lane in parts.lanes:
        lane.grants.close()
        lane.shipper.close()
    until = time.monotonic() + context.run.config.services.drain_s
    if not all(parts.crew.join(f"{lane.name}-shipper", max(0.0, until - time.monotonic())) for lane in parts.lanes):
        parts.abandoned.set()
        logger.warning("replay did not take everything within drain_s; what was not acknowledged is given up")
    parts.crew.check()
