"""The StatusService: a role's status, and the handshake that refuses callers it could not work with."""

from collections.abc import Mapping
from typing import Any

from minefleet.core.errors import ContractError
from minefleet.rpc.durations import duration
from minefleet.rpc.enum_names import role_word
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc
from minefleet_runtime.role_status import StatusTracker

Identity = status_service_pb2.Identity


class StatusServicer(status_service_pb2_grpc.StatusServiceServicer):
    """For sync servers."""

    def __init__(self, identity: Identity, status: StatusTracker) -> None:
        self._identity = identity
        self._status = status

    def Describe(  # noqa: N802
        self, request: status_service_pb2.DescribeRequest, context: Any
    ) -> status_service_pb2.DescribeResponse:
        """Answers as the proto says."""
        return describe(self._identity, self._status, request)


class AioStatusServicer(status_service_pb2_grpc.StatusServiceServicer):
    """For aio servers."""

    def __init__(self, identity: Identity, status: StatusTracker) -> None:
        self._identity = identity
        self._status = status

    async def Describe(  # noqa: N802
        self, request: status_service_pb2.DescribeRequest, context: Any
    ) -> status_service_pb2.DescribeResponse:
        """Answers as the proto says."""
        return describe(self._identity, self._status, request)


def describe(
    identity: Identity, status: StatusTracker, request: status_service_pb2.DescribeRequest
) -> status_service_pb2.DescribeResponse:
    """Returns the server's identity and status.

    Raises:
        ContractError: If the caller named itself and differs in something that both must agree on.
    """
    if request.HasField("caller"):
        compare(identity, request.caller)
    report = status.snapshot()
    return status_service_pb2.DescribeResponse(
        identity=identity,
        run_id=report.run_id,
        state=report.state,
        detail=report.detail,
        uptime=duration(report.uptime_s),
        stats={**report.stats, **status.read_sources()},
    )


def compare(server: Identity, caller: Identity) -> None:
    """Refuses a caller that the server could not work with.

    Raises:
        ContractError: Names each difference, with both values.
    """
    ours = {"wire_version": str(server.wire_version), **server.contract}
    theirs = {"wire_version": str(caller.wire_version), **caller.contract}
    differences = _differences(ours, theirs)
    if differences:
        raise ContractError(
            f"{_describe_identity(caller)} does not fit {_describe_identity(server)}: {'; '.join(differences)}. "
            "Start both with the same version and configuration"
        )


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    shared = [key for key in ours if key in theirs]
    return [f"{key} is {theirs[key]} there and {ours[key]} here" for key in shared if ours[key] != theirs[key]]


def _describe_identity(identity: Identity) -> str:
    return f"{role_word(identity.role)} {identity.instance}"
