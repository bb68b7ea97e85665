"""The refusal that says what to do next: which tensors a publish must send after all.

It travels as google.rpc.PreconditionFailure.
"""

from collections.abc import Iterable, Sequence

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from minefleet.core.errors import ContractError

VIOLATION = "TENSOR_MISSING"

# A status travels in trailers, which gRPC bounds at 8 KiB; the sender asks again for what was left out.
MAX_LISTED = 48


class MissingTensorsError(ContractError):
    """A publish names tensors that were neither sent nor held.

    Attributes:
        digests: Some of them.
    """

    def __init__(self, digests: Sequence[str]) -> None:
        super().__init__(f"{len(digests)} tensors were neither sent nor held, {digests[0]} for one")
        self.digests = frozenset(digests[:MAX_LISTED])

    def to_status(self) -> grpc.Status:
        """The status that `missing_digests` reads."""
        failure = error_details_pb2.PreconditionFailure()
        for digest in sorted(self.digests):
            failure.violations.add(type=VIOLATION, subject=digest)
        detail = any_pb2.Any()
        detail.Pack(failure)
        return rpc_status.to_status(
            status_pb2.Status(code=code_pb2.FAILED_PRECONDITION, message=str(self), details=[detail])
        )


def missing_digests(error: grpc.RpcError) -> frozenset[str]:
    """Returns the digests that a refused publish should send; none if it was refused for something else."""
    status = rpc_status.from_call(error) if isinstance(error, grpc.Call) else None
    failure = error_details_pb2.PreconditionFailure()
    details: Iterable[any_pb2.Any] = status.details if status is not None else ()
    for detail in details:
        if detail.Unpack(failure):
            return frozenset(item.subject for item in failure.violations if item.type == VIOLATION)
    return frozenset()
