"""The actor role: `python -m minefleet_actor --run-dir DIR [--index N]`."""

from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext


def body(context: RoleContext) -> None:
    """Acts until asked to stop.

    Shutdown: stop deciding; close every open fragment with its complete steps; end the environments; send what is
    queued, at most for `drain_s`.
    """
    from minefleet.v1.slots_service_pb2_grpc import add_SlotsServiceServicer_to_server
    from minefleet_actor.role import act, prepare
    from minefleet_actor.slots_service import SlotsServicer
    from minefleet_runtime.serve import serving

    slots = SlotsServicer()
    with serving(
        context,
        context.run.config.services.actor.address,
        lambda server: add_SlotsServiceServicer_to_server(slots, server),
    ):
        parts = prepare(context)
        slots.view = parts.view
        act(context, parts)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_ACTOR, body)
