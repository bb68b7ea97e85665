"""Turns errors that a servicer raises into gRPC status: the way back of `minefleet.rpc.rpc_errors.from_rpc_error`."""

import errno
import logging
import uuid

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from minefleet.core.errors import (
    AuthError,
    ConfigError,
    ConflictError,
    ContractError,
    CorruptError,
    DeadlineError,
    FencedError,
    FleetError,
    GaveUpError,
    InternalError,
    NotFoundError,
    OverloadedError,
    RejectedError,
    RolledBackError,
    StrangerError,
    UnavailableError,
)
from minefleet.rpc.durations import duration
from minefleet.rpc.retrier import StoppedError
from minefleet_runtime.retryable_resource_errors import SHORTAGES

logger = logging.getLogger(__name__)

SHORTAGE_RETRY_S = 5.0

MESSAGE_BYTES = 1500
"""Longest message of a status. It travels twice, in up to three times its bytes, and clients take 8 KiB of both."""

STATUS_OF: dict[type[FleetError], grpc.StatusCode] = {
    ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    ContractError: grpc.StatusCode.FAILED_PRECONDITION,
    FencedError: grpc.StatusCode.ABORTED,
    RejectedError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ConflictError: grpc.StatusCode.ALREADY_EXISTS,
    CorruptError: grpc.StatusCode.DATA_LOSS,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    StoppedError: grpc.StatusCode.UNAVAILABLE,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    AuthError: grpc.StatusCode.PERMISSION_DENIED,
    StrangerError: grpc.StatusCode.UNAUTHENTICATED,
    InternalError: grpc.StatusCode.INTERNAL,
    GaveUpError: grpc.StatusCode.INTERNAL,
    RolledBackError: grpc.StatusCode.INTERNAL,
}


def status_of(error: Exception, method: str) -> grpc.Status:
    """The gRPC status of an error, for a caller of `method`.

    Only a `FleetError` is quoted, and a shortage of this machine. Anything else is a bug here: it is logged under an
    error id, and the caller learns the id alone.
    """
    if isinstance(error, OSError) and error.errno in (*SHORTAGES, errno.ENOMEM):
        logger.error("%s in %s", error, method)
        error = OverloadedError(f"this machine has run short: {error.strerror}", SHORTAGE_RETRY_S)
    for kind in type(error).__mro__:
        if kind in STATUS_OF:
            return _status(STATUS_OF[kind], str(error), error)
    error_id = uuid.uuid4().hex[:8]
    logger.error("error %s in %s", error_id, method, exc_info=error)
    return _status(grpc.StatusCode.INTERNAL, f"internal error {error_id}; the server's log has the details", error)


def _status(code: grpc.StatusCode, message: str, error: Exception) -> grpc.Status:
    status = status_pb2.Status(code=code.value[0], message=_cut(message))
    if isinstance(error, OverloadedError):
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=duration(error.retry_after_s)))
        status.details.append(detail)
    return rpc_status.to_status(status)


def _cut(message: str) -> str:
    encoded = message.encode(errors="replace")
    return message if len(encoded) <= MESSAGE_BYTES else encoded[:MESSAGE_BYTES].decode(errors="ignore") + " ..."
