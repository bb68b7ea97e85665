"""The evaluator: `python -m minefleet_actor.evaluator --run-dir DIR`, an actor whose steps are not trained on.

Every `eval_interval` iterations it plays `eval_episodes` whole episodes with the version that is the newest then, on
environments of its own: with the likeliest actions, or with drawn ones where `eval_sample` is set. The records ride the
first shard's episode log to the learner, marked as evaluation.
"""

import uuid
from collections.abc import Iterable, Iterator

from minefleet.rpc.weights.version_info import VersionInfo
from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext

EVALUATOR_INDEX = 2**16
"""Its environments are seeded as those of an actor with this index, which no actor has."""


def body(context: RoleContext) -> None:
    """Evaluates until asked to stop."""
    from minefleet_actor.build import parameters_client
    from minefleet_actor.evaluation.player import make_player
    from minefleet_actor.inference.weight_sync import announced
    from minefleet_actor.replay_io.connect import replay_client
    from minefleet_runtime.grpc_server.serve import serving

    name, config = uuid.uuid4().hex[:12], context.run.config
    replay = replay_client(context, context.run.shards[0], "", context.stopping)
    player = make_player(
        context.run,
        episodes=config.eval_episodes,
        seed=config.seed,
        index=EVALUATOR_INDEX,
        greedy=not config.eval_sample,
    )
    parameters = parameters_client(context, name, player.inference.architecture)
    with serving(context, "127.0.0.1:0"), player:
        context.status.set_state(status_service_pb2.STATE_WAITING, "waiting for the first iteration to evaluate")
        for _ in due(announced(parameters), config.eval_interval):
            info, weights = parameters.fetch()
            context.status.set_state(status_service_pb2.STATE_RUNNING, f"evaluating version {info.version}")
            player.inference.swap(weights, info.version)
            parameters.runs(info.version)
            records = [played.record for played in player.play(config.eval_episodes, f"{name}-{info.version}")]
            replay.append(episodes=records)


def due(announced: Iterable[VersionInfo], interval: int) -> Iterator[VersionInfo]:
    """The announcements to evaluate at: the first one of each `interval` iterations, also after a run has gone back."""
    evaluated = 0
    for version in announced:
        before, evaluated = evaluated, version.iteration // interval
        if evaluated > before:
            yield version


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_ACTOR, body, name="evaluator", has_free_ports=True)
