from collections.abc import Callable

import pytest

from minefleet.errors import CorruptError, NotFoundError
from minefleet.v1 import weights_pb2
from minefleet_parameters.wishes import CLAIM_TIMEOUT_S, MAX_WISHES, WishBook


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> WishBook:
    book = WishBook(clock)
    book.add([wish("video-1", 2)])
    return book


def wish(name: str, count: int = 1) -> weights_pb2.Wish:
    return weights_pb2.Wish(name=name, kind="video", count=count)


def names(book: WishBook) -> list[str]:
    return [wish.name for wish in book.pending()]


def test_a_wish_is_pending_until_it_is_claimed_as_often_as_asked(book: WishBook) -> None:
    assert book.claim("video-1", "a")
    assert names(book) == ["video-1"]
    assert book.claim("video-1", "b")
    assert names(book) == []
    assert not book.claim("video-1", "c")


def test_claiming_is_idempotent_per_wish_and_actor(book: WishBook) -> None:
    assert all(book.claim("video-1", "a") for _ in range(3))
    assert names(book) == ["video-1"]
    assert all(book.done("video-1", "a") for _ in range(3))
    assert names(book) == ["video-1"]
    assert not book.claim("video-1", "a")


def test_a_claim_that_is_not_done_in_time_is_pending_again(book: WishBook, clock: Clock) -> None:
    book.claim("video-1", "a")
    book.claim("video-1", "b")
    clock.now_s = CLAIM_TIMEOUT_S - 1
    book.claim("video-1", "b")
    assert names(book) == []
    clock.now_s = CLAIM_TIMEOUT_S
    assert names(book) == ["video-1"]
    assert book.claim("video-1", "c")
    assert not book.done("video-1", "a")
    assert book.done("video-1", "b")


def test_a_late_report_counts_while_nobody_else_has_claimed(book: WishBook, clock: Clock) -> None:
    book.claim("video-1", "a")
    clock.now_s = 2 * CLAIM_TIMEOUT_S
    assert book.done("video-1", "a")
    assert book.done("video-1", "b")
    assert names(book) == []


def test_a_fulfilled_wish_never_comes_back(book: WishBook, clock: Clock) -> None:
    for actor in ("a", "b"):
        book.claim("video-1", actor)
        book.done("video-1", actor)
    book.add([wish("video-1", 2)])
    clock.now_s = 2 * CLAIM_TIMEOUT_S
    assert names(book) == []


def test_what_is_done_survives_a_restart_and_a_claim_does_not(book: WishBook, clock: Clock) -> None:
    book.add([wish("video-2")])
    book.done("video-1", "a")
    book.claim("video-1", "b")
    book.claim("video-2", "b")
    assert names(book) == []
    again = WishBook(clock)
    again.read(book.to_json())
    assert names(again) == ["video-1", "video-2"]
    assert not again.claim("video-1", "a")
    assert again.done("video-1", "b")
    assert names(again) == ["video-2"]


@pytest.mark.parametrize("act", [WishBook.claim, WishBook.done])
def test_a_wish_that_nobody_made_is_not_found(book: WishBook, act: Callable[[WishBook, str, str], bool]) -> None:
    with pytest.raises(NotFoundError, match="no wish 'video-9'"):
        act(book, "video-9", "a")


def test_the_number_of_wishes_is_bounded_and_fulfilled_ones_are_forgotten_first(book: WishBook) -> None:
    book.add([wish(f"old-{index}") for index in range(MAX_WISHES - 1)])
    book.done("old-5", "a")
    book.add([wish("new-1"), wish("new-2")])
    assert len(names(book)) == MAX_WISHES
    assert "video-1" not in names(book)
    assert names(book)[-1] == "new-2"


@pytest.mark.parametrize("text", ["", "{}x", '["a"]', '[{"name": "a"}]'])
def test_a_damaged_file_of_wishes_is_refused(clock: Clock, text: str) -> None:
    with pytest.raises(CorruptError, match="file of wishes is damaged"):
        WishBook(clock).read(text)
