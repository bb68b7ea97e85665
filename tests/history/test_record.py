from contextlib import suppress
from pathlib import Path

import pytest
from tests.history.record import UNKNOWN, Recorder, read_calls

from minefleet.errors import FencedError, UnavailableError


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "one.jsonl")


def test_a_call_is_read_back_with_its_answer(recorder: Recorder, tmp_path: Path) -> None:
    with recorder.call("ack", lease=1) as answer:
        answer["env_steps"] = 2
    recorder.close()
    (call,) = read_calls(tmp_path)
    assert (call.kind, call.asked, call.answer, call.ending) == ("ack", {"lease": 1}, {"env_steps": 2}, "ok")
    assert call.sent < call.back < UNKNOWN


def test_a_refusal_is_a_failure_and_silence_is_unknown(recorder: Recorder, tmp_path: Path) -> None:
    for error in (FencedError("newer"), UnavailableError("gone")):
        with suppress(type(error)), recorder.call("ack", lease=1):
            raise error
    recorder.close()
    refused, silent = read_calls(tmp_path)
    assert refused.is_fenced and not silent.is_fenced
    assert (silent.ending, silent.back) == ("info", UNKNOWN)


def test_a_call_that_a_kill_has_cut_is_unknown(recorder: Recorder, tmp_path: Path) -> None:
    with recorder.call("ack", lease=1):
        pass
    recorder.close()
    path = tmp_path / "one.jsonl"
    path.write_bytes(path.read_bytes()[:-2])
    (call,) = read_calls(tmp_path)
    assert call.ending == "info"
