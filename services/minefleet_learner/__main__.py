"""The learner role: `python -m minefleet_learner --run-dir DIR`, alone or as one of the ranks that torchrun starts."""

from minefleet.launch.torchrun_variables import local_rank_here, rank_here
from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext


def body(context: RoleContext) -> None:
    """Trains until the run is over or this process is asked to stop.

    Shutdown: the iteration under way is finished, or abandoned if a peer is away; unacked leases are given back; the
    last checkpoint and `result.json` are written.
    """
    from minefleet_learner.trainer_loader import build_trainer
    from minefleet_runtime.serve import serving

    trainer = build_trainer(context.run)
    with serving(context, context.run.config.services.learner.address):
        trainer.fit(context)


def follow(context: RoleContext) -> None:
    """Trains with rank 0 until that says that it is over, or is gone."""
    from contextlib import closing
    from dataclasses import replace

    from minefleet_learner.build import build_follower
    from minefleet_runtime.serve import serving

    with closing(build_follower(context)) as follower, serving(replace(context, listen=""), "127.0.0.1:0"):
        context.status.set_state(status_service_pb2.STATE_RUNNING, "follows rank 0")
        follower.follow()


def main() -> None:
    """Becomes the rank that the environment says."""
    rank = rank_here()
    name = f"learner-{rank}" if rank else None
    has_free_ports = rank > 0 and local_rank_here() > 0
    run_role(status_service_pb2.ROLE_LEARNER, follow if rank else body, name=name, has_free_ports=has_free_ports)


if __name__ == "__main__":
    main()
