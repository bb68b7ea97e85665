"""Health of the server as a whole, which is all that anybody asks for.

Watching any other name is refused: gRPC's own servicer keeps every name that was ever watched, and watching needs no
token.
"""

from collections.abc import Iterator
from typing import Any

from grpc_health.v1 import health, health_pb2

from minefleet.core.errors import NotFoundError


class Health(health.HealthServicer):  # type: ignore[misc]  # It has no types.
    """For sync servers."""

    def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Any, send_response_callback: Any = None
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """Sends the state now, and each change of it."""
        _check_name(request)
        watch: Iterator[health_pb2.HealthCheckResponse] = super().Watch(request, context, send_response_callback)
        return watch

    def List(  # noqa: N802
        self, request: health_pb2.HealthListRequest, context: Any
    ) -> health_pb2.HealthListResponse:
        """Returns the state of the server, under the empty name."""
        return health_pb2.HealthListResponse(statuses={"": self.Check(health_pb2.HealthCheckRequest(), context)})


class AioHealth(health.aio.HealthServicer):  # type: ignore[misc]
    """For aio servers."""

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802
        """Sends the state now, and each change of it."""
        _check_name(request)
        await super().Watch(request, context)

    async def List(  # noqa: N802
        self, request: health_pb2.HealthListRequest, context: Any
    ) -> health_pb2.HealthListResponse:
        """Returns the state of the server, under the empty name."""
        return health_pb2.HealthListResponse(statuses={"": await self.Check(health_pb2.HealthCheckRequest(), context)})


def _check_name(request: health_pb2.HealthCheckRequest) -> None:
    if request.service:
        raise NotFoundError("health is the whole server's: leave the name of the service empty")
