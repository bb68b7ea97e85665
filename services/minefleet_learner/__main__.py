"""The learner role: `python -m minefleet_learner --run-dir DIR`."""

from minefleet.v1 import status_service_pb2
from minefleet_runtime.context import RoleContext
from minefleet_runtime.main import run_role


def body(context: RoleContext) -> None:
    """Trains until the run is over or this process is asked to stop.

    Shutdown: the iteration under way is finished, or abandoned if a peer is away; unacked leases are given back; the
    last checkpoint and `result.json` are written.
    """
    from minefleet_learner.trainers import build_trainer
    from minefleet_runtime.serve import serving

    trainer = build_trainer(context.run)
    with serving(context, context.run.config.services.learner.address):
        trainer.fit(context)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_LEARNER, body)
