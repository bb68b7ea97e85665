import errno
import os

import grpc
import pytest

from minefleet.core import errors
from minefleet.core.errors import FleetError, OverloadedError
from minefleet.rpc.retrier import StoppedError
from minefleet.rpc.rpc_errors import translated
from minefleet_runtime.grpc_server.error_status import status_of

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FleetError) and kind is not FleetError
]
WIDENED = {
    errors.ConfigError: errors.ContractError,
    errors.EnvFailedError: errors.ContractError,
    errors.RunMismatchError: errors.ContractError,
    errors.GaveUpError: errors.InternalError,
    errors.RolledBackError: errors.InternalError,
}
"""Kinds that share a status with a wider one."""


@pytest.mark.parametrize("kind", [*KINDS, StoppedError])
def test_every_error_of_ours_has_a_status_that_quotes_it(kind: type[FleetError]) -> None:
    assert status_of(kind("what went wrong"), "Service/Method").details == "what went wrong"


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_comes_back_as_what_was_raised_or_its_parent(kind: type[FleetError]) -> None:
    status = status_of(kind("what went wrong"), "Service/Method")
    with pytest.raises(FleetError, match="what went wrong") as caught, translated():
        raise Received(status)
    assert type(caught.value) is WIDENED.get(kind, kind)


class Received(grpc.RpcError):
    """A status as a channel raises it."""

    def __init__(self, status: grpc.Status) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status.code

    def details(self) -> str:
        return self._status.details


def test_a_retry_hint_travels_in_the_trailers() -> None:
    status = status_of(OverloadedError("full", 2.5), "Service/Method")
    assert any(key == "grpc-status-details-bin" for key, _ in status.trailing_metadata or ())


@pytest.mark.parametrize("character", ["x", "\N{GRINNING FACE}", "\ud800"])
def test_error_status_cuts_a_long_message_to_what_a_client_takes(character: str) -> None:
    status = status_of(errors.RejectedError(character * 10**5), "Service/Method")
    assert status.details.endswith(" ...")
    sizes = [len(value) for _, value in status.trailing_metadata or ()]
    assert sum(sizes) + len(status.details.encode()) < 4096


def test_errors_that_are_not_ours_are_never_quoted_to_callers() -> None:
    assert "secret" not in status_of(ValueError("secret"), "Service/Method").details


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC])
def test_error_status_of_a_machine_shortage_asks_to_retry(number: int) -> None:
    status = status_of(OSError(number, os.strerror(number)), "Service/Method")
    assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert os.strerror(number) in status.details
    assert any(key == "grpc-status-details-bin" for key, _ in status.trailing_metadata or ())
    assert status_of(OSError(errno.EIO, "secret"), "Service/Method").code is grpc.StatusCode.INTERNAL
