"""The learner role: `python -m minefleet_learner --run-dir DIR`, alone or as one of the ranks that torchrun starts."""

import argparse
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from minefleet.launch.torchrun_variables import local_rank_here, rank_here
from minefleet.monitoring.journal import differing_keys, read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import LOOK_S, unanswered
from minefleet.monitoring.rollback_requests import open_rollback
from minefleet.runs.checkpoint_files import newest, read_state
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run
from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext

if TYPE_CHECKING:
    from minefleet_learner.rank_worker import RankWorker


def prepare(context: RoleContext) -> Callable[[], object]:
    """Builds this rank's part; returns what trains until the run is over or this process is asked to stop.

    Shutdown of rank 0: the iteration under way is finished, or abandoned if a peer is away; unacked leases are given
    back; the last checkpoint and `result.json` are written. The other ranks end with it.
    """
    if rank_here():
        from minefleet_learner.build import build_follower

        return partial(follow, context, build_follower(context))
    from minefleet_learner.trainer_loader import build_trainer

    return partial(build_trainer(context.run).fit, context)


def follow(context: RoleContext, follower: "RankWorker") -> None:
    """Trains with rank 0 until that says that it is over, or is gone."""
    with closing(follower):
        context.status.set_state(status_service_pb2.STATE_RUNNING, "follows rank 0")
        follower.follow()


def ending_of(run: Run) -> str:
    """The condition that ended a run whose keys have not changed since; "" where there is more to train."""
    checkpoint = newest(run.checkpoints)
    if checkpoint is None or differing_keys(read_run(checkpoint, RUN_FILE), run):
        return ""
    stopped_by = read_state(checkpoint).stopped_by
    return "" if stopped_by == "signal" else stopped_by


def is_asked(run: Run) -> bool:
    """Whether requests wait for a learner, or what one has answered."""
    lines = read_whole_journal(run.directory)
    return bool(unanswered(lines)) or open_rollback(lines) is not None


def body(context: RoleContext) -> None:
    """Trains, as the rank that the environment says. With `--stay` it waits while the run is over, until a signal."""
    from minefleet_runtime.grpc_server.serve import serving

    rank, ending = rank_here(), ending_of(context.run) if context.arguments.stay else ""
    train = None if ending else prepare(context)
    address = "127.0.0.1:0" if rank else context.run.config.services.learner.address
    with serving(replace(context, listen="" if rank else context.listen), address):
        if train is None:
            context.status.set_state(status_service_pb2.STATE_PAUSED, f"the run is over: {ending}")
            while not (is_asked(context.run) or context.stopping.wait(LOOK_S)):
                pass
            if context.stopping.is_set():
                return
            train = prepare(context)
        train()


def main() -> None:
    """Becomes the rank that the environment says."""
    rank = rank_here()
    name = f"learner-{rank}" if rank else None
    has_free_ports = rank > 0 and local_rank_here() > 0

    def add_stay(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--stay", action="store_true", help="wait where the run is over")

    run_role(status_service_pb2.ROLE_LEARNER, body, name=name, has_free_ports=has_free_ports, add_arguments=add_stay)


if __name__ == "__main__":
    main()
