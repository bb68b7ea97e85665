import grpc
import pytest

from minefleet.core.errors import ConfigError, FleetError, OverloadedError, UnavailableError
from minefleet.rpc.rpc_errors import translated


class Refusal(grpc.RpcError):
    """An error as a channel raises it, without trailers."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_translated_turns_every_status_into_an_error_of_ours_with_its_words(code: grpc.StatusCode) -> None:
    with pytest.raises(FleetError, match="the details"), translated():
        raise Refusal(code, "the details")


def test_translated_names_a_status_without_words() -> None:
    with pytest.raises(UnavailableError, match="UNAVAILABLE"), translated():
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "")


def test_overloaded_error_without_a_hint_says_to_retry_after_a_second() -> None:
    with pytest.raises(OverloadedError) as caught, translated():
        raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert caught.value.retry_after_s == 1.0


def test_translated_passes_errors_of_ours() -> None:
    with pytest.raises(ConfigError, match="as it was"), translated():
        raise ConfigError("as it was")
