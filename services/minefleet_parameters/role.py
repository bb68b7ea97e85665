"""Serves the versions of one run until the role is asked to stop.

Shutdown: every watch ends with UNAVAILABLE, so that watchers look for the server that comes next; publishes and
fetches in flight may finish within `services.drain_s`; then the store is closed. Nothing needs flushing: what was
answered is on disk.
"""

import asyncio

import grpc

from minefleet.config import FleetConfig
from minefleet_parameters.metrics import ParametersMetrics
from minefleet_parameters.service import ParametersService, add_to_server
from minefleet_parameters.store import open_store
from minefleet_runtime.grpc_server.serve import serve_aio
from minefleet_runtime.role_context import RoleContext

MIN_KEPT_VERSIONS = 8


def serve_run(context: RoleContext) -> None:
    """Opens the store below the run directory and serves it."""
    with open_store(context.run.parameters, keep=versions_to_keep(context.run.config)) as store:
        service = ParametersService(store, ParametersMetrics(context.registry), context.status)
        service.start()
        asyncio.run(_serve(context, service))


def versions_to_keep(config: FleetConfig) -> int:
    """The number of newest versions to keep: those that chunks in use were acted by are among them."""
    return max(MIN_KEPT_VERSIONS, config.rollout_config.replay_buffer_config.max_staleness + 2)


async def _serve(context: RoleContext, service: ParametersService) -> None:
    def register(server: grpc.aio.Server) -> None:
        add_to_server(service, server)

    draining = asyncio.create_task(service.drain_when(context.stopping))
    try:
        await serve_aio(context, context.run.config.services.parameters.address, register)
    finally:
        # Set already, unless serving failed: then nothing else would end the wait for it.
        context.stopping.set()
        await draining
