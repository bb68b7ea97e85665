"""The parameters role: `python -m minefleet_parameters --run-dir DIR`."""

from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext


def body(context: RoleContext) -> None:
    from minefleet_parameters.role import serve_run

    serve_run(context)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_PARAMETERS, body)
