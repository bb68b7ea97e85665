"""Translates the errors of gRPC into those of `minefleet.core.errors`, which loads no gRPC."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from minefleet.core.errors import (
    AuthError,
    ConflictError,
    ContractError,
    CorruptError,
    DeadlineError,
    FencedError,
    FleetError,
    InternalError,
    NotFoundError,
    OverloadedError,
    RejectedError,
    StrangerError,
    UnavailableError,
)

_BY_STATUS: dict[grpc.StatusCode, type[FleetError]] = {
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNKNOWN: InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: RejectedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.PERMISSION_DENIED: AuthError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.FAILED_PRECONDITION: ContractError,
    grpc.StatusCode.ABORTED: FencedError,
    grpc.StatusCode.OUT_OF_RANGE: RejectedError,
    grpc.StatusCode.UNIMPLEMENTED: ContractError,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DATA_LOSS: CorruptError,
    grpc.StatusCode.UNAUTHENTICATED: StrangerError,
}


def from_rpc_error(error: grpc.RpcError) -> FleetError:
    """Translates a gRPC error into ours; `OverloadedError` takes its hint from google.rpc.RetryInfo."""
    kind = _BY_STATUS[error.code()]
    message = error.details() or error.code().name
    if kind is OverloadedError:
        return OverloadedError(message, _retry_after_s(error))
    return kind(message)


@contextmanager
def translated() -> Iterator[None]:
    """Turns every `grpc.RpcError` raised inside into a `FleetError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


def _retry_after_s(error: grpc.RpcError) -> float:
    status = rpc_status.from_call(error) if isinstance(error, grpc.Call) else None
    details: Iterable[any_pb2.Any] = status.details if status is not None else ()
    for detail in details:
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return 1.0
