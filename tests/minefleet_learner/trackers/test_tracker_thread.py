"""A tracker may do what it likes: the caller goes on, and what was lost is counted."""

import json
import threading
from pathlib import Path

import pytest
from tests.minefleet_learner.trackers.conftest import MakeTracked
from tests.role_process import wait_for

from minefleet_learner.trackers import Tracker, tracker, tracker_thread
from minefleet_learner.trackers.tracker_thread import MAX_ENTRIES, TrackerThread

pytestmark = pytest.mark.usefixtures("odd_trackers")
LONG_S = 60.0


def log(number: int) -> tracker_thread.Entry:
    def entry(one: Tracker) -> None:
        one.log({"loss": float(number)}, number)

    return entry


def lost(name: str, number: int, of: int) -> str:
    return f"tracker {name} was not given {number} of {of} rows and videos; metrics.jsonl has every row"


def test_a_tracker_is_given_everything_in_order_and_nothing_is_logged(
    tmp_path: Path, make_tracked: MakeTracked, caplog: pytest.LogCaptureFixture
) -> None:
    thread = TrackerThread("writing", tracker.find("writing"), make_tracked(step=7))
    for number in range(3):
        thread.put(log(number))
    thread.put(lambda one: one.log_video("video", tmp_path / "a.mp4", "version 1", 3))
    thread.end()
    thread.join(LONG_S)
    assert [json.loads(line) for line in (tmp_path / "written.jsonl").read_text().splitlines()] == [
        ["start", ["run-id", "n", "p", 7, 0]],
        *(["log", {"loss": number}, number] for number in range(3)),
        ["video", "video", str(tmp_path / "a.mp4"), "version 1", 3],
        ["close"],
    ]
    assert caplog.messages == []


def test_a_tracker_that_raises_is_reported_once_and_its_rows_are_counted(
    make_tracked: MakeTracked, caplog: pytest.LogCaptureFixture
) -> None:
    thread = TrackerThread("failing", tracker.find("failing"), make_tracked())
    for number in range(3):
        thread.put(log(number))
    thread.put(lambda one: one.log_video("video", Path("a.mp4"), "", 3))
    thread.end()
    thread.join(LONG_S)
    trouble, count = caplog.messages
    assert trouble.startswith("tracker failing failed: SystemExit: out of order (raised in ")
    assert trouble.endswith("; training goes on")
    assert count == lost("failing", 3, 4)


def test_a_tracker_that_cannot_be_made_stays_off(make_tracked: MakeTracked, caplog: pytest.LogCaptureFixture) -> None:
    thread = TrackerThread("unmade", tracker.find("unmade"), make_tracked())
    wait_for(lambda: bool(caplog.messages))
    thread.put(log(1))
    thread.end()
    thread.join(LONG_S)
    trouble, count = caplog.messages
    assert trouble.startswith("tracker unmade did not start and stays off: ImportError: a library is missing")
    assert count == lost("unmade", 1, 1)


def test_a_tracker_that_hangs_is_reported_and_left_behind(
    make_tracked: MakeTracked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_thread, "MAX_CALL_S", 0.0)
    thread = TrackerThread("hanging", tracker.find("hanging"), make_tracked())

    def is_reported() -> bool:
        thread.put(log(1))
        return bool(caplog.messages)

    wait_for(is_reported)
    thread.end()
    thread.join(threading.TIMEOUT_MAX)
    hang, left, count = caplog.messages
    assert hang == "tracker hanging has not returned from a call for 0 s; training goes on"
    assert left == "tracker hanging did not end in time and is left behind"
    assert count.startswith("tracker hanging was not given ")


def test_a_tracker_that_does_not_keep_up_loses_what_the_queue_cannot_hold(
    make_tracked: MakeTracked, caplog: pytest.LogCaptureFixture
) -> None:
    thread = TrackerThread("hanging", tracker.find("hanging"), make_tracked())
    for number in range(MAX_ENTRIES + 5):
        thread.put(log(number))
    thread.join(0.0)
    assert caplog.messages == [
        f"tracker hanging is {MAX_ENTRIES} rows behind; training goes on",
        "tracker hanging did not end in time and is left behind",
        lost("hanging", MAX_ENTRIES + 5, MAX_ENTRIES + 5),
    ]
