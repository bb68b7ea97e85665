"""A role that does as it is told: `python stand_in_role.py --run-dir DIR WHAT`, with RUN_DIR/fifo to say that it is up.

serve       serves until it is asked to stop
stubborn    never stops by itself
config, fleet, stopped, bug     raises
"""

import argparse
import threading

from minefleet.core.errors import ConfigError, UnavailableError
from minefleet.rpc.channel import StoppedError
from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext
from minefleet_runtime.serve import nothing, serve

RAISED = {
    "config": ConfigError("discount must lie in [0, 1], got 2"),
    "fleet": UnavailableError("replay has gone"),
    "stopped": StoppedError("stopped while waiting for replay"),
    "bug": KeyError("bug"),
}


def body(context: RoleContext) -> None:
    what = context.arguments.what
    if what in RAISED:
        raise RAISED[what]
    (context.run.directory / "fifo").write_text("up")
    if what == "serve":
        serve(context, "127.0.0.1:0", nothing)
    else:
        threading.Event().wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what")


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_REPLAY, body, add_arguments=add_arguments)
