"""The learner role: `python -m minefleet_learner --run-dir DIR`."""

from minefleet.v1 import status_service_pb2
from minefleet_runtime.context import RoleContext
from minefleet_runtime.main import run_role


def body(context: RoleContext) -> None:
    """Trains until the run is over or this process is asked to stop.

    Shutdown: the iteration under way is finished, or abandoned if a peer is away; unacked leases are given back; the
    last checkpoint and `result.json` are written.
    """
    from minefleet_learner.assembly import build_learner
    from minefleet_learner.loop import run
    from minefleet_runtime.serve import serving

    learner = build_learner(context, background=True)
    with serving(context, context.run.config.services.learner.address):
        run(learner, context.stopping)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_LEARNER, body)
