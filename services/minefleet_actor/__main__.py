"""The actor role: `python -m minefleet_actor --run-dir DIR [--index N]`."""

from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext


def body(context: RoleContext) -> None:
    """Acts until asked to stop.

    Shutdown: stop deciding; close every open fragment with its complete steps; end the environments; send what is
    queued, at most for `drain_s`.
    """
    from minefleet_actor.role import act, prepare
    from minefleet_runtime.serve import serving

    with serving(context, context.run.config.services.actor.address):
        act(context, prepare(context))


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_ACTOR, body)
