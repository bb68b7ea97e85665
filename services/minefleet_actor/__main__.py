"""The actor role: `python -m minefleet_actor --run-dir DIR [--index N]`."""

from typing import TYPE_CHECKING

from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext

if TYPE_CHECKING:
    import grpc

WORKERS = 16
"""Threads that handle calls, besides one for each host."""
MAX_HOSTS = 1024


def body(context: RoleContext) -> None:
    """Acts until asked to stop; a version whose settings take another number of environments begins with another actor.

    Shutdown: stop deciding; close every open fragment with its complete steps; end the environments; send what is
    queued, at most for `drain_s`.
    """
    from minefleet.v1.slots_service_pb2_grpc import add_SlotsServiceServicer_to_server
    from minefleet.v1.worlds_service_pb2_grpc import add_WorldsServiceServicer_to_server
    from minefleet_actor.env_hosts.env_host_dial_in import WorldsServicer
    from minefleet_actor.role import act, lifetime, prepare
    from minefleet_actor.slot_watch_service import SlotsServicer
    from minefleet_runtime.grpc_server.serve import serving

    worker = context.run.config.rollout_config.worker_config
    slots, worlds = SlotsServicer(), WorldsServicer()

    def register(server: "grpc.Server") -> None:
        add_SlotsServiceServicer_to_server(slots, server)
        add_WorldsServiceServicer_to_server(worlds, server)

    hosts = MAX_HOSTS if worker.hosted else 0
    with serving(context, context.run.config.services.actor.address, register, max_workers=WORKERS + hosts):
        while not context.stopping.is_set():
            with lifetime(context) as own:
                parts = prepare(own)
                slots.view, worlds.pool = parts.view, parts.pool
                act(own, parts)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_ACTOR, body)
