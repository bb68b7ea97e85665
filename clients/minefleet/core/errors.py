"""All errors, as one tree.

FleetError
├── ConfigError            the configuration cannot work; exit code 2
│   └── EnvFailedError     the environment fails before it has ever worked
├── GaveUpError            going on is pointless, and so is a restart; exit code 3
├── ContractError          wire version, schema, architecture or a key differs between two roles
│   └── RunMismatchError   a store holds another run
├── FencedError            a newer epoch has taken over, or another version was published first
├── RejectedError          the peer found the request malformed
├── NotFoundError          the named lease, version or tensor is gone
├── ConflictError          the name is taken by other bytes
├── CorruptError           stored bytes failed their checksum
├── OverloadedError        no room; try again after `retry_after_s`
├── UnavailableError       the peer does not answer or is draining
├── DeadlineError          the deadline passed
├── AuthError              not allowed
│   └── StrangerError      the caller does not show who it is
└── InternalError          a bug in the peer
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_GAVE_UP = 3


class FleetError(Exception):
    """Anything that minefleet raises on purpose."""


class ConfigError(FleetError):
    """The configuration cannot work. Says what, where, and the nearest valid value."""


class EnvFailedError(ConfigError):
    """The environment fails before it has ever worked. Holds its own traceback."""


class GaveUpError(FleetError):
    """Going on is pointless, and so is starting again. Says why and what to look at."""


class ContractError(FleetError):
    """Two roles do not fit together."""


class RunMismatchError(ContractError):
    """A store holds another run."""


class FencedError(FleetError):
    """A newer epoch has taken over, or another version was published first."""


class RejectedError(FleetError):
    """The peer found the request malformed."""


class NotFoundError(FleetError):
    """The named lease, version or tensor is gone."""


class ConflictError(FleetError):
    """The name is taken by other bytes."""


class CorruptError(FleetError):
    """Stored bytes failed their checksum."""


class OverloadedError(FleetError):
    """The peer has no room now.

    Attributes:
        retry_after_s: When to try again, in seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(FleetError):
    """The peer does not answer or is draining."""


class DeadlineError(FleetError):
    """The deadline passed before the peer answered."""


class AuthError(FleetError):
    """The peer does not let this caller do this."""


class StrangerError(AuthError):
    """The caller does not show who it is."""


class InternalError(FleetError):
    """A bug in the peer; its log has the details."""


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
