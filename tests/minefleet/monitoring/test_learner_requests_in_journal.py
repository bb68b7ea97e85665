import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.monitoring.journal import append, read_whole_journal
from minefleet.monitoring.journaled_pauses import last_pause
from minefleet.monitoring.learner_requests_in_journal import (
    PAUSE,
    REFUSED,
    REQUEST,
    ROLLBACK,
    SET,
    answers_in,
    ask,
    newest_learner,
    unanswered,
)
from minefleet.monitoring.live_settings_by_iteration import set_lines, settings_at
from minefleet.runs.run_yaml import JOURNAL_FILE

KEYS = ("a", "b")
WORDS = st.sampled_from([SET, ROLLBACK, REFUSED, PAUSE, REQUEST, "start", "resume", "restart"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
GARBAGE = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "event": WORDS | JSON,
            "id": st.sampled_from("xyz") | JSON,
            "iteration": st.integers(0, 5) | JSON,
            "learner": st.sampled_from("lm") | JSON,
            "keys": JSON | st.lists(st.fixed_dictionaries({}, optional={"key": JSON, "new": JSON}), max_size=2),
            "set": JSON,
        },
    ),
    max_size=12,
)


def a_set(number: int, iteration: int, **values: Any) -> dict[str, Any]:
    keys = [{"key": key, "old": None, "new": value} for key, value in values.items()]
    return {"event": SET, "id": f"id{number}", "iteration": iteration, "keys": keys}


def a_rollback(number: int, iteration: int) -> dict[str, Any]:
    return {"event": ROLLBACK, "id": f"id{number}", "iteration": iteration}


@given(
    st.lists(
        st.tuples(st.sampled_from([SET, SET, ROLLBACK]), st.integers(0, 9), st.sampled_from(KEYS), st.integers()),
        max_size=12,
    ),
    st.integers(0, 10),
)
def test_settings_are_those_of_a_dictionary_that_is_set_and_cut_in_order(
    script: list[tuple[str, int, str, int]], iteration: int
) -> None:
    lines, history = [], list[tuple[int, str, int]]()
    for number, (event, at, key, value) in enumerate(script):
        if event == SET:
            lines.append(a_set(number, at, **{key: value}))
            history.append((at, key, value))
        else:
            lines.append(a_rollback(number, at))
            history = [entry for entry in history if entry[0] <= at]
    expected = dict[str, int]()
    for at, key, value in history:
        if at <= iteration:
            expected[key] = value
    assert settings_at(lines, iteration) == expected


@given(GARBAGE, st.integers(0, 6))
def test_any_lines_can_be_folded_and_a_request_is_answered_or_not(lines: list[dict[str, Any]], iteration: int) -> None:
    assert all(isinstance(key, str) for key in settings_at(lines, iteration))
    requests = {line["id"] for line in lines if line.get("event") == REQUEST and isinstance(line.get("id"), str)}
    left = {line["id"] for line in unanswered(lines)}
    assert left == requests - answers_in(lines).keys()
    newest_learner(lines)
    last = last_pause(lines)
    assert last is None or last["event"] in (PAUSE, SET, ROLLBACK)


def test_a_request_that_stands_there_twice_is_answered_once_by_the_first_answer() -> None:
    request = {"event": REQUEST, "id": "id1", "set": {"a": 1}}
    assert unanswered([request, request]) == [request]
    lines = [request, request, a_set(1, 5, a=1), a_set(1, 9, a=2)]
    assert unanswered(lines) == []
    assert settings_at(lines, 9) == {"a": 1}


def test_answers_of_a_learner_that_was_frozen_while_another_took_over_count_for_nothing() -> None:
    request = {"event": REQUEST, "id": "id1", "set": {"a": 1}}
    late = a_set(1, 3, a=1) | {"learner": "old"}
    lines: list[dict[str, Any]] = [
        {"event": "start", "learner": "old"},
        request,
        {"event": "resume", "learner": "new"},
        late,
    ]
    assert settings_at(lines, 9) == {} and unanswered(lines) == [request] and newest_learner(lines) == "new"
    lines.append(a_set(1, 7, a=1) | {"learner": "new"})
    assert settings_at(lines, 6) == {} and settings_at(lines, 7) == {"a": 1} and unanswered(lines) == []


def test_the_whole_journal_is_read_past_torn_lines_and_its_last_mebibyte(tmp_path: Path) -> None:
    request = ask(tmp_path, "why not", set={"a": 1})
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"event": "set", "id": "' + request.encode())  # The disk was full.
    append(tmp_path, SET, {}, id=request, keys=[{"key": "a", "old": 0, "new": 1}])
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'[1]\n\xff\n{"event": ["set"], "id": {}}\n' + b" " * 2**21 + b"\n")
    lines = read_whole_journal(tmp_path)
    assert unanswered(lines) == [] and settings_at(lines, 0) == {"a": 1}
    assert [(line["event"], line["why"], line["set"]) for line in lines[:1]] == [("request", "why not", {"a": 1})]


def test_an_answer_that_is_torn_at_any_byte_is_none_and_can_be_given_again(tmp_path: Path) -> None:
    request = ask(tmp_path, set={"a": 1})
    before = (tmp_path / JOURNAL_FILE).read_bytes()
    append(tmp_path, SET, {"iteration": 4}, id=request, keys=[{"key": "a", "old": 0, "new": 1}])
    answer = (tmp_path / JOURNAL_FILE).read_bytes()[len(before) :]
    for size in range(len(answer) - 1):  # Without its newline it is whole.
        (tmp_path / JOURNAL_FILE).write_bytes(before + answer[:size])
        lines = read_whole_journal(tmp_path)
        assert len(unanswered(lines)) == 1 and set_lines(lines) == []
        append(tmp_path, SET, {"iteration": 5}, id=request, keys=[{"key": "a", "old": 0, "new": 2}])
        lines = read_whole_journal(tmp_path)
        assert unanswered(lines) == [] and (settings_at(lines, 4), settings_at(lines, 5)) == ({}, {"a": 2})


def test_a_request_that_cannot_be_written_whole_is_an_error(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        ask(tmp_path, set={"a": 1})
    assert json.dumps(read_whole_journal(tmp_path)) == "[]"


def test_a_pause_lasts_until_a_request_that_came_after_it_is_granted() -> None:
    def asked(number: int) -> dict[str, Any]:
        return {"event": REQUEST, "id": f"id{number}"}

    pause = {"event": PAUSE, "id": "pause", "reason": "why"}
    late = [asked(1), pause, a_set(1, 5, a=1)]
    assert last_pause([asked(1), a_set(1, 5, a=1)]) is None
    assert last_pause(late) is pause
    assert last_pause([*late, asked(2), {"event": REFUSED, "id": "id2"}]) is pause
    assert last_pause([*late, asked(2), a_set(2, 6, a=2)]) == a_set(2, 6, a=2)
    assert last_pause([*late, asked(2), a_rollback(2, 3)]) == a_rollback(2, 3)
    again = {**pause, "id": "another"}
    assert last_pause([*late, asked(2), a_set(2, 6, a=2), again]) is again
    starts = [{"event": "start", "learner": "old"}, {"event": "resume", "learner": "new"}]
    assert last_pause([*starts, {**pause, "learner": "old"}]) is None, "of a learner that was frozen meanwhile"
