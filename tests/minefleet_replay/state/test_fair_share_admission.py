"""Streams wait for others, so that all have the steps that they are meant to."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from minefleet_replay.state.fair_share_admission import LAPSE_S, Balance
from minefleet_replay.state.limits import Limits
from minefleet_replay.state.stream_pace import Streams, StreamState

CHUNK = 10
TICK_S = 0.01
ALWAYS = (0.0, float("inf"))


@dataclass
class Player:
    """An environment that makes a chunk whenever it may, and says that it plays while it does."""

    name: str
    task: str
    step_s: float
    plays: tuple[float, float] = ALWAYS
    """From when to when."""
    done: int = 0
    done_at: float = 0.0
    """When its chunk is whole."""
    working: bool = False
    history: list[tuple[float, int]] = field(default_factory=list)

    def tick(self, balance: Balance, streams: Streams, now: float) -> None:
        if not self.plays[0] <= now < self.plays[1]:
            self.working = False
            return
        streams.update(StreamState(self.name, 0, None, self.step_s, self.task), now)
        if self.working and now >= self.done_at:
            balance.count(self.name, self.task, CHUNK)
            self.done, self.working = self.done + CHUNK, False
            self.history.append((now, self.done))
        if not self.working:
            balance.update(now)
            if not balance.is_ahead(self.name):
                self.working, self.done_at = True, now + CHUNK * self.step_s

    def made(self, since: float, until: float) -> int:
        """Steps that were made in a span of time."""
        return sum(CHUNK for at, _ in self.history if since <= at < until)


class World:
    """Players, and a learner that takes `train_s` for each iteration of 100 steps."""

    def __init__(self, players: list[Player], rule: str, train_s: float = 0.001, **limits: Any) -> None:
        defaults: dict[str, Any] = {"steps_per_iteration": 100, "chunk_steps": CHUNK, "max_steps": 10**6}
        defaults |= {"max_bytes": 2**26, "least_steps": 1, "max_reuse": 1, "max_staleness": 1, "grant_timeout_s": 60.0}
        made = Limits(**(defaults | {"balance": rule} | limits))
        self.streams = Streams(made)
        self.balance = Balance(made, self.streams)
        self.balance.trained(0.0, train_s)
        self.players = players

    def play(self, seconds: float) -> None:
        """Lets time pass."""
        for tick in range(round(seconds / TICK_S)):
            for player in self.players:
                player.tick(self.balance, self.streams, tick * TICK_S)

    def made(self, task: str, since: float, until: float = float("inf")) -> int:
        """Steps of all environments that play a task."""
        return sum(player.made(since, until) for player in self.players if player.task == task)


def two_tasks(ratio: float, **options: Any) -> list[Player]:
    slow = [Player(f"slow-{number}", "slow", 0.01 * ratio, **options) for number in range(2)]
    return slow + [Player(f"fast-{number}", "fast", 0.01) for number in range(6)]


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_balance_by_task_gives_tasks_equal_steps_whatever_their_speed_and_environments(ratio: float) -> None:
    world = World(two_tasks(ratio), "task", balance_limit=100.0)
    world.play(100.0)
    assert world.made("fast", 20.0) == pytest.approx(world.made("slow", 20.0), rel=0.05)
    assert not world.balance.let_off


def test_fair_share_of_equally_fast_streams_makes_nobody_wait() -> None:
    players = [Player(f"{number}", "a" if number % 2 else "b", 0.02) for number in range(4)]
    for rule in ("task", "slot"):
        world = World(players, rule)
        world.play(20.0)
        assert all(player.done >= 0.9 * 20.0 / 0.02 for player in players)
        players = [Player(player.name, player.task, player.step_s) for player in players]


def test_balance_by_slot_gives_slots_equal_steps() -> None:
    players = two_tasks(3.0)
    World(players, "slot", balance_limit=100.0).play(100.0)
    made = [player.made(20.0, 100.0) for player in players]
    assert max(made) <= 1.05 * min(made)


def test_balance_by_task_gives_tasks_steps_by_their_weights() -> None:
    world = World(two_tasks(1.0), "task", task_weights={"fast": 3.0}, balance_limit=100.0)
    world.play(100.0)
    assert world.made("fast", 20.0) == pytest.approx(3 * world.made("slow", 20.0), rel=0.05)


def test_the_fleet_becomes_slower_by_the_limit_at_most_and_what_a_task_lacks_then_is_counted() -> None:
    world = World(two_tasks(60.0), "task", balance_limit=4.0)
    world.play(100.0)
    alone = 6 / 0.01 + 2 / 0.6
    made = sum(world.made(task, 20.0) for task in ("fast", "slow")) / 80
    assert made == pytest.approx(alone / 4, rel=0.1)
    slow = sum(player.made(20.0, 100.0) for player in world.players if player.task == "slow")
    assert slow == pytest.approx(80 * 2 / 0.6, rel=0.2)
    assert world.balance.let_off["slow"] > 1000 and not world.balance.let_off["fast"]


def test_balance_limit_is_of_the_learners_pace_where_the_learner_sets_it() -> None:
    world = World(two_tasks(60.0), "task", train_s=1.0, balance_limit=4.0)
    world.play(100.0)
    assert sum(world.made(task, 20.0) for task in ("fast", "slow")) / 80 == pytest.approx(100 / 4, rel=0.15)


def test_fair_share_waits_for_a_stream_that_is_gone_a_while_and_owes_it_nothing() -> None:
    gone = Player("gone", "gone", 0.01, plays=(0.0, 20.0))
    players = [gone, *(Player(f"{number}", "there", 0.01) for number in range(2))]
    world = World(players, "task", balance_limit=1000.0)
    world.play(60.0)
    assert world.made("there", 22.0, 20.0 + LAPSE_S - 1) <= 100
    assert world.made("there", 20.0 + LAPSE_S + 1, 60.0) >= 0.9 * 2 * 29 / 0.01
    again = Player("again", "gone", 0.01, plays=(60.0, 200.0))
    world.players = [*players, again]
    before = sum(player.done for player in players[1:])
    for tick in range(6000, 12_000):
        for player in world.players:
            player.tick(world.balance, world.streams, tick * TICK_S)
    assert again.done == pytest.approx(sum(player.done for player in players[1:]) - before, rel=0.05)


def test_balance_lets_a_stream_make_again_the_steps_that_left_untrained() -> None:
    lost = Player("lost", "lost", 0.01)
    kept = Player("kept", "kept", 0.01)
    world = World([lost, kept], "task", balance_limit=100.0)
    for tick in range(10_000):
        before = lost.done
        for player in world.players:
            player.tick(world.balance, world.streams, tick * TICK_S)
        if lost.done > before and lost.done % (2 * CHUNK) == 0:
            world.balance.count("lost", "lost", -CHUNK)
    assert kept.done == pytest.approx(lost.done / 2, rel=0.05)
