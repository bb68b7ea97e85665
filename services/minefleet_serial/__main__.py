"""All roles in one process, in order, for the debugger: `python -m minefleet_serial --run-dir DIR`.

The same servers, clients and loops as in a fleet, without its threads: the actor takes turns until replay grants
nothing more, then the learner does one iteration. No policy acts while another is trained, so staleness is 0.
"""

from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext


def body(context: RoleContext) -> None:
    """Alternates actor and learner until the learner says that the run is over."""
    from minefleet_serial.serial_loop import run_in_order

    run_in_order(context)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_LEARNER, body)
