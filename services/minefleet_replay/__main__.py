"""Replay as a process: `python -m minefleet_replay --run-dir DIR`, with `--index I` for one shard of several.

Shutdown: the server refuses new calls, the ticker ends the waits of learners, calls in flight finish, and the store is
flushed and closed.
"""

from contextlib import ExitStack

from minefleet.v1 import status_service_pb2
from minefleet_runtime.main import run_role
from minefleet_runtime.role_context import RoleContext


def body(context: RoleContext) -> None:
    """Opens the store and serves it until asked to stop."""
    import gc
    from random import Random

    from minefleet_replay.engine.maintenance import Maintenance
    from minefleet_replay.engine.metrics import ReplayMetrics, show_limits
    from minefleet_replay.engine.open_replay import open_replay
    from minefleet_replay.service import HANDLERS, ReplayServicer, add_to_server
    from minefleet_replay.state.limits import limits_of
    from minefleet_runtime.grpc_server.serve import serve
    from minefleet_runtime.metrics import DiskCollector
    from minefleet_runtime.process_setup import die_with_any_thread

    die_with_any_thread()
    shard, metrics = context.run.shards[context.index], ReplayMetrics(context.registry)
    limits = limits_of(context.run, context.index)
    with ExitStack() as stack:
        rng = Random(context.run.config.seed + context.index)
        # What is read now lives long: the collector would scan it again and again, and stop all threads meanwhile.
        gc.disable()
        replay = open_replay(shard.store, limits, metrics, rng=rng, bound=context.status.set_run)
        gc.freeze()
        gc.enable()
        stack.callback(replay.close)
        show_limits(context.registry, lambda: replay.transactions.state.limits)
        context.registry.register(DiskCollector("minefleet_replay", shard.store))
        ticker = Maintenance(replay, metrics, context.status, context.stopping)
        stack.callback(ticker.close)
        ticker.start()
        servicer = ReplayServicer(replay, limits, metrics)
        serve(context, shard.endpoint.address, lambda server: add_to_server(servicer, server), max_workers=HANDLERS)


if __name__ == "__main__":
    run_role(status_service_pb2.ROLE_REPLAY, body)
