"""A child process leaves an answer for its parent."""

import io

import pytest

from minefleet.core.child_process_answers import read_answer, read_last_line


@pytest.mark.parametrize(("written", "answer"), [(b'{"a": 1}', {"a": 1}), (b"", {}), (b'{"a": ', {}), (b"\xff", {})])
def test_read_answer_of_a_child_that_died_over_it_is_empty(written: bytes, answer: dict[str, int]) -> None:
    assert read_answer(io.BytesIO(written)) == answer


@pytest.mark.parametrize(("printed", "line"), [(b"a\nb\n\n", "b"), (b"", "it said nothing"), (b"\xff\n", "\ufffd")])
def test_read_last_line_skips_what_is_blank(printed: bytes, line: str) -> None:
    assert read_last_line(io.BytesIO(printed)) == line
