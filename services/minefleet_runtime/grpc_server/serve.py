"""Serves gRPC until the role is asked to stop, and drains.

Health says NOT_SERVING before the port is open. Shutdown: health says NOT_SERVING and the status DRAINING; new calls
are refused with UNAVAILABLE; calls in flight may finish within `services.drain_s`, then they are cancelled.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minefleet.core.errors import ConfigError
from minefleet.rpc.channel import FRAMES, KEEPALIVE, MESSAGE_BYTES
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc
from minefleet_runtime.address_reachability import findable, is_loopback
from minefleet_runtime.grpc_server.access import Access
from minefleet_runtime.grpc_server.health import AioHealth, Health
from minefleet_runtime.grpc_server.interceptors import MAX_PROBES, AioRpcInterceptor, RpcInterceptor
from minefleet_runtime.grpc_server.status_service import AioStatusServicer, StatusServicer
from minefleet_runtime.metrics import RpcMetrics
from minefleet_runtime.port_release_wait import await_free_port
from minefleet_runtime.process_setup import allow_open_files
from minefleet_runtime.role_context import RoleContext

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

CALLS_PER_WORKER = 16
"""Calls that may wait for each handler thread; beyond that the server answers RESOURCE_EXHAUSTED."""

# Without so_reuseport = 0 two servers bind one port without an error and split its calls.
SERVER_OPTIONS = (
    *KEEPALIVE,
    *FRAMES,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)


def nothing(_: grpc.Server) -> None:
    """Registers no servicer: a role that serves only health and StatusService."""


def serve(
    context: RoleContext, address: str, register: Callable[[grpc.Server], None], *, max_workers: int = 16
) -> None:
    """Serves until `context.stopping` is set, then drains and returns.

    Args:
        context: The role; its status becomes RUNNING once the port is open.
        address: `host:port` to listen on.
        register: Adds the role's servicers.
        max_workers: Threads that handle calls; probes have some of their own.

    Raises:
        ConfigError: If the address cannot be bound.
    """
    allow_open_files()
    with serving(context, address, register, max_workers=max_workers):
        context.status.set_state(status_service_pb2.STATE_RUNNING)
        context.stopping.wait()


@contextmanager
def serving(
    context: RoleContext, address: str, register: Callable[[grpc.Server], None] = nothing, *, max_workers: int = 16
) -> Iterator[str]:
    """Serves in the background; yields the bound `host:port`, and drains at the end.

    Raises:
        ConfigError: If the address cannot be bound.
    """
    pool = futures.ThreadPoolExecutor(max_workers + 2 * MAX_PROBES, thread_name_prefix=f"{context.name}-rpc")
    server = grpc.server(
        pool,
        interceptors=[RpcInterceptor(RpcMetrics(context.registry), Access(context.credentials))],
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=CALLS_PER_WORKER * max_workers,
    )
    readiness = Health()
    readiness.set("", NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(readiness, server)
    status = StatusServicer(context.run.identity(context.role), context.status)
    status_service_pb2_grpc.add_StatusServiceServicer_to_server(status, server)
    register(server)
    bound = _bind(server, address, context)
    server.start()
    readiness.set("", SERVING)
    context.announce(bound)
    logger.info("%s serves on %s", context.name, bound)
    try:
        yield bound
    finally:
        context.status.set_state(status_service_pb2.STATE_DRAINING)
        readiness.enter_graceful_shutdown()
        server.stop(context.run.config.services.drain_s).wait()
        pool.shutdown(wait=False, cancel_futures=True)
        logger.info("%s has drained", context.name)


async def serve_aio(context: RoleContext, address: str, register: Callable[[grpc.aio.Server], None]) -> None:
    """Serves on the running event loop until `context.stopping` is set, then drains and returns.

    Streams that never end by themselves must watch `context.stopping`, or the drain takes all of `drain_s`.

    Raises:
        ConfigError: If the address cannot be bound.
    """
    allow_open_files()
    interceptor = AioRpcInterceptor(RpcMetrics(context.registry), Access(context.credentials))
    server = grpc.aio.server(interceptors=[interceptor], options=SERVER_OPTIONS)
    readiness = AioHealth()
    await readiness.set("", NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(readiness, server)
    status = AioStatusServicer(context.run.identity(context.role), context.status)
    status_service_pb2_grpc.add_StatusServiceServicer_to_server(status, server)
    register(server)
    bound = _bind(server, address, context)
    await server.start()
    await readiness.set("", SERVING)
    context.announce(bound)
    context.status.set_state(status_service_pb2.STATE_RUNNING)
    logger.info("%s serves on %s", context.name, bound)
    try:
        await asyncio.to_thread(context.stopping.wait)
    finally:
        context.status.set_state(status_service_pb2.STATE_DRAINING)
        await readiness.enter_graceful_shutdown()
        await server.stop(context.run.config.services.drain_s)
        logger.info("%s has drained", context.name)


def _bind(server: grpc.Server | grpc.aio.Server, address: str, context: RoleContext) -> str:
    """Listens; returns the `host:port` at which callers find it."""
    key, place = ("listen", context.listen) if context.listen else ("address", address)
    host, own = place.rpartition(":")[0], context.credentials
    if not (is_loopback(host) or own.protects or own.insecure):
        raise ConfigError(
            f"{context.section}.{key}={place} lets other machines call, and nothing asks who does: make "
            "certificates (`minefleet certs init DIR`, services.security.certificates=DIR), give a token "
            "(services.security.token_file=FILE), or say services.security.insecure=true"
        )
    trust = own.server()
    await_free_port(place)
    try:
        port = server.add_insecure_port(place) if trust is None else server.add_secure_port(place, trust)
    except RuntimeError as error:
        raise ConfigError(
            f"{context.section}.{key}: cannot listen on {place}: it is in use or not this machine's. "
            "Port 0 takes a free one"
        ) from error
    return address if context.listen else findable(f"{host}:{port}")
