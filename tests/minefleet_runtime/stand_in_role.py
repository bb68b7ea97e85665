"""A role that does as it is told: `python stand_in_role.py --run-dir DIR WHAT`, with RUN_DIR/fifo to say that it is up.

serve       serves until it is asked to stop
stubborn    never stops by itself
config, fleet, stopped     raises
bug                        is one of ours: nothing of this file is called
FILE.py:FUNCTION           calls it
"""

import argparse
import sys
import threading
from typing import Any

from minefleet.core.errors import ConfigError, UnavailableError
from minefleet.core.function_references import load
from minefleet.core.tree import tree_map
from minefleet.rpc.retrier import StoppedError
from minefleet.v1 import status_service_pb2
from minefleet_runtime.grpc_server.serve import nothing, serve
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext

RAISED = {
    "config": ConfigError("discount must lie in [0, 1], got 2"),
    "fleet": UnavailableError("replay has gone"),
    "stopped": StoppedError("stopped while waiting for replay"),
}


def body(context: RoleContext) -> None:
    what = context.arguments.what
    if what in RAISED:
        raise RAISED[what]
    if ":" in what:
        load(what)()
    (context.run.directory / "fifo").write_text("up")
    if what == "serve":
        serve(context, "127.0.0.1:0", nothing)
    else:
        threading.Event().wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what")


if __name__ == "__main__":
    ours: Any = tree_map
    run_role(status_service_pb2.ROLE_REPLAY, ours if "bug" in sys.argv else body, add_arguments=add_arguments)
