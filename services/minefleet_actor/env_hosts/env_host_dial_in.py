"""The gRPC service to which hosts of environments dial in."""

import threading
from collections.abc import Iterator
from typing import Any

from minefleet.core.errors import ContractError, RejectedError, UnavailableError
from minefleet.v1 import worlds_service_pb2, worlds_service_pb2_grpc
from minefleet_actor.pool import HostedPool, Pool

HELLO_TIMEOUT_S = 5.0


class WorldsServicer(worlds_service_pb2_grpc.WorldsServiceServicer):
    """Lets hosts play for the actor's pool, once there is one."""

    def __init__(self) -> None:
        self.pool: Pool | None = None

    def Play(  # noqa: N802
        self, request_iterator: Iterator[worlds_service_pb2.PlayRequest], context: Any
    ) -> Iterator[worlds_service_pb2.PlayResponse]:
        """Answers as the proto says."""
        pool = self.pool
        if pool is None:
            raise UnavailableError("the actor has not started yet")
        if not isinstance(pool, HostedPool):
            raise ContractError(
                "this actor runs its environments itself: rollout_config.worker_config.hosted=true lets hosts do it"
            )
        # A caller that says nothing would hold a thread for ever.
        timer = threading.Timer(HELLO_TIMEOUT_S, context.cancel)
        timer.start()
        try:
            first = next(request_iterator, None)
        finally:
            timer.cancel()
        if first is None or not first.HasField("hello"):
            raise RejectedError("the first message must be a Hello")
        link = pool.join(first.hello, context.cancel)
        threading.Thread(target=link.read, args=(request_iterator, pool.inbox), name=link.name, daemon=True).start()
        yield from link.responses()
