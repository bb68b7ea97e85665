"""Every check finds what it is for in a small history that is right but for one thing."""

from typing import Any

import pytest
from tests.history.checks import CHECKS
from tests.history.history import History, Made, Rules
from tests.history.lending import torn
from tests.history.record import UNKNOWN, Call, Ending
from tests.history.survey import Drop, Survey

RULES = Rules(fragments_per_chunk=1, max_reuse=2, max_staleness=1)
PAIRS = Rules(fragments_per_chunk=2, max_reuse=2, max_staleness=1)
FENCED = {"error": "FencedError"}
A, B = ("a", 0), ("b", 0)


def made(stream: str, sequence: int = 0, version: int = 1, newest: int = 0, *, closes: bool = False) -> Made:
    return Made(stream, sequence, version, max(version, newest), f"{stream}{sequence}", closes)


class Story:
    """Calls one after the other, each two seconds long, and what is left in the end.

    The sound one: two learners' iterations use fragment `a` up; `b` is held; there is one episode.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.survey = Survey()
        self.rules = RULES

    def tell(self, kind: str, asked: dict[str, Any], answer: dict[str, Any], ending: Ending = "ok") -> None:
        sent = 2.0 * len(self.calls)
        back = UNKNOWN if ending == "info" else sent + 1
        self.calls.append(Call(kind=kind, asked=asked, sent=sent, back=back, ending=ending, answer=answer))

    def append(
        self, *fragments: Made, newest: int, outcome: str = "stored", ending: Ending = "ok", **asked: Any
    ) -> None:
        known = {"fragments": fragments, "episodes": [], "actor": "x", "env_steps": 4, "bad": ""}
        answer = {"outcomes": [outcome for _ in fragments], "newest": newest} if ending == "ok" else {"error": "E"}
        self.tell("append", known | asked, answer, ending)

    def open(self, epoch: int, resumed: int, newest: int) -> None:
        self.tell("open_epoch", {"epoch": epoch - 1, "version": resumed}, {"epoch": epoch, "newest": newest})
        self.publish(epoch, newest)

    def publish(self, epoch: int, version: int) -> None:
        self.tell("publish", {"epoch": epoch, "version": version}, {"version": version + 1})

    def ask(self, kind: str, epoch: int, version: int, answer: Any = None, ending: Ending = "ok", **asked: Any) -> None:
        self.tell(kind, {"epoch": epoch, "version": version, **asked}, answer or {}, ending)

    def lease(self, epoch: int, version: int, number: int, *chunks: Any, use_version: int = 0) -> None:
        answer = {"chunks": chunks, "env_steps": 4}
        self.ask("lease", epoch, version, answer, lease=number, use_version=use_version or version)

    def read(self, epoch: int, version: int, number: int, *fragments: Made) -> None:
        parts = [(one.stream, one.sequence, one.digest) for one in fragments]
        self.ask("read", epoch, version, {"fragments": parts}, lease=number)

    def ack(self, epoch: int, version: int, number: int, ending: Ending = "ok", answer: Any = None) -> None:
        answer = answer or {"env_steps": 4}
        self.ask("ack", epoch, version, answer, ending, lease=number, used_at=version - 1)

    def episodes(self, epoch: int, version: int, *episodes: Any) -> None:
        self.ask("read_episodes", epoch, version, {"episodes": episodes, "next": len(episodes)}, cursor=0)

    def found(self) -> set[str]:
        """The checks that find something."""
        history = History(self.calls, self.rules)
        return {check.__name__ for check in CHECKS if list(check(history, self.survey))}


@pytest.fixture
def story() -> Story:
    story = Story()
    story.open(1, resumed=0, newest=0)
    story.episodes(1, 1)
    story.append(made("a"), newest=1, episodes=[["a", 0]])
    story.lease(1, 1, 1, ("a", 0, 1, 0, 1))
    story.read(1, 1, 1, made("a"))
    story.publish(1, 1)
    story.ack(1, 2, 1)
    story.episodes(1, 2, ("a", 0))
    story.lease(1, 2, 2, ("a", 0, 1, 1, 1))
    story.read(1, 2, 2, made("a"))
    story.publish(1, 2)
    story.ack(1, 3, 2)
    story.append(made("b", version=3), newest=3)
    story.survey = Survey(
        ledger={"appended": 2},
        epoch=1,
        newest_version=3,
        named={A, B},
        held={B: "b0"},
        dropped={A: Drop(reason="trained", uses=2, oldest_version=1)},
        episodes=[("a", 0)],
        env_steps={"x": 4},
    )
    return story


def test_a_sound_history_has_no_faults(story: Story) -> None:
    assert story.found() == set()


def test_an_acked_fragment_that_is_gone_is_lost(story: Story) -> None:
    del story.survey.held[B]
    assert story.found() == {"lost"}


def test_an_acked_fragment_that_is_not_remembered_is_lost(story: Story) -> None:
    story.survey.named.remove(B)
    story.survey.ledger["appended"] = 1
    assert story.found() == {"lost"}


def test_a_fragment_that_is_held_and_explained_is_found(story: Story) -> None:
    story.survey.held[A] = "a0"
    assert "lost" in story.found()


def test_a_fragment_of_unknown_outcome_may_be_there_or_not(story: Story) -> None:
    story.append(made("c", version=3), newest=3, ending="info")
    assert story.found() == set()
    story.survey.named.add(("c", 0))
    story.survey.held["c", 0] = "c0"
    story.survey.ledger["appended"] = 3
    assert story.found() == set()


def test_a_refused_fragment_is_never_seen(story: Story) -> None:
    story.append(made("c", version=3), newest=3, ending="fail", bad="broken")
    assert story.found() == set()
    story.survey.held["c", 0] = "c0"
    assert story.found() == {"lost", "altered"}


def test_what_must_be_refused_is_not_taken(story: Story) -> None:
    story.append(made("b", version=3), newest=3, outcome="duplicate", bad="other bytes")
    assert story.found() == {"admitted"}


def test_what_must_be_taken_is_not_refused(story: Story) -> None:
    story.append(made("c", version=3), newest=3, ending="fail")
    assert story.found() == {"admitted"}


@pytest.mark.parametrize(
    "drop",
    [
        Drop(reason="stale", uses=0, oldest_version=3),
        Drop(reason="abandoned", uses=0, oldest_version=3),
        Drop(reason="incomplete", uses=0, oldest_version=3),
        Drop(reason="late", uses=0, oldest_version=3),
        Drop(reason="evicted", uses=0, oldest_version=3),
        Drop(reason="corrupt", uses=0, oldest_version=3),
    ],
)
def test_a_reason_that_is_not_true_is_found(story: Story, drop: Drop) -> None:
    del story.survey.held[B]
    story.survey.dropped[B] = drop
    assert story.found() == {"unexplained"}


def test_a_fragment_that_left_as_trained_before_its_last_use_is_found(story: Story) -> None:
    story.survey.dropped[A] = Drop(reason="trained", uses=1, oldest_version=1)
    assert story.found() == {"unexplained", "miscounted"}


def test_a_true_reason_is_none_to_complain_of(story: Story) -> None:
    story.lease(1, 3, 3, use_version=5)
    del story.survey.held[B]
    story.survey.dropped[B] = Drop(reason="stale", uses=0, oldest_version=3)
    assert story.found() == set()


def test_other_bytes_are_found_on_the_wire_and_on_the_disk(story: Story) -> None:
    story.survey.held[B] = "rotten"
    assert story.found() == {"altered"}
    story.survey.held[B] = "b0"
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.survey.leases[3] = [B]
    story.read(1, 3, 3, made("b")._replace(digest="rotten"))
    assert story.found() == {"altered"}


def test_a_repeated_lease_lends_the_same(story: Story) -> None:
    story.append(made("c", version=3), newest=3, ending="info")
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.survey.leases[3] = [B]
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    assert story.found() == set()
    story.lease(1, 3, 3, ("c", 0, 1, 0, 3))
    assert story.found() == {"torn"}


def test_a_chunk_is_lent_whole(story: Story) -> None:
    story.rules = PAIRS
    assert story.found() >= {"torn"}


def test_a_short_chunk_of_a_closed_stream_is_whole(story: Story) -> None:
    story.append(made("c", version=3, closes=True), newest=3)
    story.lease(1, 3, 3, ("c", 0, 1, 0, 3))
    assert not any("'c'" in fault for fault in torn(History(story.calls, PAIRS), story.survey))


def test_a_read_brings_all_of_its_lease(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.survey.leases[3] = [B]
    story.read(1, 3, 3)
    assert story.found() == {"torn"}


def test_a_third_use_of_two_is_found(story: Story) -> None:
    story.lease(1, 3, 3, ("a", 0, 1, 2, 1), use_version=2)
    story.survey.leases[3] = [A]
    assert story.found() == {"overused", "miscounted"}


def test_open_leases_count_as_uses(story: Story) -> None:
    for number in (3, 4):
        story.lease(1, 3, number, ("b", 0, 1, 0, 3))
        story.survey.leases[number] = [B]
    assert story.found() == set()
    story.lease(1, 3, 5, ("b", 0, 1, 0, 3))
    story.survey.leases[5] = [B]
    assert story.found() == {"overused", "miscounted"}


def test_a_released_lease_counts_no_more(story: Story) -> None:
    for number in (3, 4, 5):
        story.lease(1, 3, number, ("b", 0, 1, 0, 3))
        story.ask("release", 1, 3, lease=number)
    assert story.found() == set()


def test_a_fenced_lease_counts_no_more(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.lease(1, 3, 4, ("b", 0, 1, 0, 3))
    story.open(2, resumed=3, newest=3)
    for number in (1, 2):
        story.lease(2, 4, number, ("b", 0, 1, 0, 3))
        story.survey.leases[number] = [B]
    story.survey.epoch, story.survey.newest_version = 2, 4
    assert story.found() == set()


def test_an_acked_lease_counts_for_ever(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.ack(1, 3, 3)
    story.open(2, resumed=3, newest=3)
    for number in (1, 2):
        story.lease(2, 4, number, ("b", 0, 1, 1, 3))
        story.survey.leases[number] = [B]
    story.survey.epoch, story.survey.newest_version = 2, 4
    story.survey.uses[B] = 1
    assert story.found() == {"overused", "miscounted"}


def test_an_ack_of_unknown_outcome_may_count_or_not(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.ack(1, 4, 3, ending="info", answer={"error": "StoppedError"})
    story.open(2, resumed=3, newest=3)
    story.survey.epoch, story.survey.newest_version = 2, 4
    story.lease(2, 4, 1, ("b", 0, 1, 1, 3))
    story.survey.leases[1] = [B]
    assert story.found() == set()
    story.survey.uses[B] = 1
    assert story.found() == set()
    story.survey.uses[B] = 2
    assert story.found() == {"miscounted"}


def test_an_ack_that_was_refused_does_not_count(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.open(2, resumed=3, newest=3)
    story.episodes(2, 4, ("a", 0))
    story.ack(1, 4, 3, ending="fail", answer=FENCED)
    story.survey.epoch, story.survey.newest_version = 2, 4
    assert story.found() == set()
    story.survey.uses[B] = 1
    assert story.found() == {"miscounted"}


def test_a_use_that_was_forgotten_is_found(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    story.ack(1, 3, 3)
    assert story.found() == {"miscounted"}
    story.survey.uses[B] = 1
    assert story.found() == set()


def test_a_granted_lease_that_the_disk_does_not_hold_is_found(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3))
    assert story.found() == {"misheld"}


def test_a_closed_lease_that_the_disk_holds_is_found(story: Story) -> None:
    story.survey.leases[2] = [A]
    assert story.found() == {"misheld"}


def test_a_chunk_too_old_for_the_lease_is_found(story: Story) -> None:
    story.append(made("c", version=2), newest=3)
    story.survey.named.add(("c", 0))
    story.survey.held["c", 0] = "c0"
    story.survey.ledger["appended"] = 3
    story.lease(1, 3, 3, ("c", 0, 1, 0, 2), use_version=3)
    story.survey.leases[3] = [("c", 0)]
    assert story.found() == set()
    story.lease(1, 3, 4, ("c", 0, 1, 0, 2), use_version=4)
    story.survey.leases[4] = [("c", 0)]
    assert story.found() == {"stale"}


def test_a_chunk_that_is_used_too_late_is_found(story: Story) -> None:
    story.lease(1, 3, 3, ("b", 0, 1, 0, 3), use_version=4)
    story.ask("ack", 1, 3, {"env_steps": 4}, lease=3, used_at=5)
    story.survey.uses[B] = 1
    assert story.found() == {"stale"}


def test_a_fragment_that_is_stored_although_it_is_stale_is_found(story: Story) -> None:
    story.append(made("c", version=1), newest=3)
    story.survey.named.add(("c", 0))
    story.survey.held["c", 0] = "c0"
    story.survey.ledger["appended"] = 3
    assert story.found() == {"misjudged"}


def test_a_fragment_that_expires_although_it_is_fresh_is_found(story: Story) -> None:
    story.append(made("c", version=3), newest=3, outcome="expired")
    story.survey.named.add(("c", 0))
    story.survey.dropped["c", 0] = Drop(reason="stale", uses=0, oldest_version=3)
    story.survey.ledger["appended"] = 3
    assert story.found() == {"misjudged", "unexplained"}
    story.publish(1, 3)
    story.publish(1, 4)
    assert story.found() == {"misjudged"}


def test_a_chunk_of_an_abandoned_lineage_is_found(story: Story) -> None:
    story.open(2, resumed=2, newest=3)
    story.survey.epoch, story.survey.newest_version = 2, 4
    story.episodes(2, 4, ("a", 0))
    assert story.found() == set()
    story.lease(2, 4, 1, ("b", 0, 1, 0, 3))
    story.survey.leases[1] = [B]
    assert story.found() == {"abandoned"}


def test_a_fenced_learner_that_is_answered_is_found(story: Story) -> None:
    story.open(2, resumed=3, newest=3)
    story.episodes(2, 4, ("a", 0))
    story.survey.epoch, story.survey.newest_version = 2, 4
    story.ask("release", 1, 3, FENCED, "fail", lease=9)
    assert story.found() == set()
    story.episodes(1, 3, ("a", 0))
    assert story.found() == {"unfenced"}


def test_a_learner_that_is_fenced_too_soon_is_found(story: Story) -> None:
    story.ask("release", 1, 3, FENCED, "fail", lease=9)
    assert story.found() == {"unfenced"}


def test_a_fenced_learner_that_publishes_is_found(story: Story) -> None:
    story.open(2, resumed=3, newest=3)
    story.publish(1, 4)
    assert story.found() == {"unfenced"}


def test_a_learner_that_is_refused_without_a_reason_is_found(story: Story) -> None:
    story.ask("ack", 1, 3, {"error": "NotFoundError"}, "fail", lease=2, used_at=2)
    assert story.found() == {"ill_answered"}


def test_a_version_or_epoch_that_recedes_is_found(story: Story) -> None:
    story.tell("reserve", {"version": 3, "chunks": []}, {"granted": [], "newest": 2})
    assert story.found() == {"receding"}
    story.calls.pop()
    story.survey.newest_version = 2
    assert story.found() == {"receding"}
    story.survey.newest_version = 3
    story.publish(1, 1)
    assert story.found() == {"receding"}
    story.calls.pop()
    story.open(1, resumed=0, newest=3)
    assert "receding" in story.found()


def test_a_version_before_it_is_published_is_found(story: Story) -> None:
    story.tell("reserve", {"version": 3, "chunks": []}, {"granted": [], "newest": 4})
    assert story.found() == {"receding"}


def test_a_name_that_is_taken_twice_is_found(story: Story) -> None:
    story.append(made("b", version=3), newest=3, outcome="duplicate")
    assert story.found() == set()
    story.append(made("b", version=3), newest=3)
    assert story.found() == {"doubled"}


def test_a_fragment_that_is_counted_twice_is_found(story: Story) -> None:
    story.survey.ledger["appended"] = 3
    assert story.found() == {"doubled"}


def test_episodes_are_logged_once(story: Story) -> None:
    story.survey.episodes.append(("a", 0))
    assert story.found() == {"misreported"}
    story.survey.episodes = [("b", 7)]
    assert story.found() == {"misreported"}
    story.survey.episodes = []
    assert story.found() == {"misreported"}


def test_pages_are_parts_of_the_log(story: Story) -> None:
    story.episodes(1, 3, ("c", 0))
    assert story.found() == {"misreported"}


def test_environment_steps_are_counted(story: Story) -> None:
    story.survey.env_steps["x"] = 3
    assert story.found() == {"misadded"}
    story.survey.env_steps["x"] = 4
    story.append(newest=3, env_steps=8)
    story.survey.env_steps["x"] = 8
    assert story.found() == set()
    story.lease(1, 3, 3)
    assert story.found() == {"misadded"}


def test_a_ledger_that_does_not_add_up_is_found(story: Story) -> None:
    story.survey.faults = ["the buckets do not add up"]
    assert story.found() == {"unbalanced"}
