"""The handshake: a caller introduces itself, and is refused where the two could not work together."""

import grpc

from minefleet.rpc.channel import CALL_TIMEOUT_S
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc

WIRE_VERSION = 6
"""Roles with another wire version refuse each other. It rises where an older one would not do what a newer one asks."""


def shake_hands(
    channel: grpc.Channel, caller: status_service_pb2.Identity | None, timeout_s: float = CALL_TIMEOUT_S
) -> status_service_pb2.DescribeResponse:
    """Introduces the caller to the server, which refuses it when the two could not work together.

    None only looks, and is never refused.

    Raises:
        ContractError: If wire version, schema, architecture or a configuration key differs; says which.
    """
    request = status_service_pb2.DescribeRequest(caller=caller)
    with translated():
        return status_service_pb2_grpc.StatusServiceStub(channel).Describe(request, timeout=timeout_s)
