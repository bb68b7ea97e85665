"""A learner that is frozen while another takes over: `python frozen_learner.py ADDRESS RUN`.

It leases, reads one fragment of two, says so and waits for a line; then it tries everything it could do, and says what
became of each.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from minefleet.core.errors import FleetError
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position


def outcome_of(verb: Callable[[], Any]) -> str:
    """The name of the error, or what was read."""
    try:
        return repr(verb())
    except FleetError as error:
        return type(error).__name__


def main() -> None:
    """Lives, is frozen, and lives again."""
    address, run_id = sys.argv[1:]
    position = Position(run_id=run_id, epoch=1, version=1, first_version=1)
    with ReplayClient(address, position=position) as client:
        client.lease(1, steps=2, use_version=1, wait_s=10.0, order="oldest")
        reading = client.read(1)
        next(reading)
        sys.stdout.write("reading\n")
        sys.stdout.flush()
        sys.stdin.readline()
        verbs: dict[str, Callable[[], Any]] = {
            "go on reading": lambda: [header.name.sequence for header, _ in reading],
            "lease again": lambda: client.lease(1, steps=2, use_version=1, wait_s=0.0),
            "lease": lambda: client.lease(2, steps=2, use_version=1, wait_s=0.0),
            "read": lambda: list(client.read(1)),
            "ack": lambda: client.ack(1),
            "release": lambda: client.release(1),
            "read episodes": lambda: client.read_episodes(0, 1),
        }
        sys.stdout.write(json.dumps({name: outcome_of(verb) for name, verb in verbs.items()}) + "\n")


if __name__ == "__main__":
    main()
