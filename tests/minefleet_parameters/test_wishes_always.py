"""Any sequence of claims, reports, waits and restarts, against a model that remembers all that was answered."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minefleet.v1 import weights_pb2
from minefleet_parameters.wishes import CLAIM_TIMEOUT_S, WishBook

COUNTS = {"one": 1, "two": 2, "three": 3}
ACTORS = ("a", "b", "c", "d")
WISHES = st.sampled_from(sorted(COUNTS))


@dataclass(frozen=True, slots=True)
class Answered:
    """A claim or report that was answered with yes; of a restart only the time."""

    kind: str
    at_s: float
    wish: str = ""
    actor: str = ""


class Claims(RuleBasedStateMachine):
    """The model is the list of answers; every question is answered by looking through all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.answers: list[Answered] = []
        self.book = WishBook(lambda: self.now_s)
        self.book.add(weights_pb2.Wish(name=name, kind="video", count=count) for name, count in COUNTS.items())

    def done(self, wish: str) -> set[str]:
        return {each.actor for each in self.answers if each.kind == "done" and each.wish == wish}

    def holding(self, wish: str) -> dict[str, float]:
        """Claims that have neither ended nor been done nor lost in a restart: actor to when it began."""
        restarts = [number for number, each in enumerate(self.answers) if each.kind == "restart"]
        recent = self.answers[restarts[-1] :] if restarts else self.answers
        claims = {each.actor: each.at_s for each in recent if each.kind == "claim" and each.wish == wish}
        done = self.done(wish)
        return {
            actor: at_s for actor, at_s in claims.items() if self.now_s < at_s + CLAIM_TIMEOUT_S and actor not in done
        }

    def is_taken(self, wish: str) -> bool:
        return len(self.done(wish)) + len(self.holding(wish)) >= COUNTS[wish]

    @rule(wish=WISHES, actor=st.sampled_from(ACTORS))
    def claim(self, wish: str, actor: str) -> None:
        expected = actor in self.holding(wish) or (actor not in self.done(wish) and not self.is_taken(wish))
        assert self.book.claim(wish, actor) == expected
        if expected:
            self.answers.append(Answered("claim", self.now_s, wish, actor))

    @rule(wish=WISHES, actor=st.sampled_from(ACTORS))
    def report_done(self, wish: str, actor: str) -> None:
        expected = actor in self.done(wish) | self.holding(wish).keys() or not self.is_taken(wish)
        assert self.book.done(wish, actor) == expected
        if expected:
            self.answers.append(Answered("done", self.now_s, wish, actor))

    @rule(share=st.sampled_from([0.3, 0.5, 1.0]))
    def wait(self, share: float) -> None:
        self.now_s += share * CLAIM_TIMEOUT_S

    @rule()
    def wish_again(self) -> None:
        self.book.add([weights_pb2.Wish(name="one", kind="video", count=1)])

    @rule()
    def restart(self) -> None:
        again = WishBook(lambda: self.now_s)
        again.read(self.book.to_json())
        self.book = again
        self.answers.append(Answered("restart", self.now_s))

    @invariant()
    def what_is_pending_is_what_is_neither_done_nor_claimed(self) -> None:
        assert [wish.name for wish in self.book.pending()] == [wish for wish in COUNTS if not self.is_taken(wish)]

    @invariant()
    def nobody_does_more_than_was_asked(self) -> None:
        for wish, count in COUNTS.items():
            assert len(self.done(wish)) + len(self.holding(wish)) <= count

    @invariant()
    def the_next_end_is_the_earliest_of_all_claims(self) -> None:
        began_s = [at_s for wish in COUNTS for at_s in self.holding(wish).values()]
        expected = min(began_s) + CLAIM_TIMEOUT_S - self.now_s if began_s else None
        assert self.book.next_end_s() == expected


test_claims_are_never_more_than_asked_and_none_is_lost = Claims.TestCase
