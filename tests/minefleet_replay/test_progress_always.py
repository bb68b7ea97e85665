"""No setting deadlocks: simulated actors that lose fragments, close streams, lag behind and die, and a learner."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

FRAGMENTS_PER_ITERATION = 12
ITERATIONS = 8
TRAINING_TICKS = 3
GRANT_TIMEOUT_S = 20.0
LONGEST_TICKS = 4000
LOSS = 0.01
CLOSING = 0.02


@dataclass
class Stream:
    """One environment slot: asks for a chunk, makes it fragment by fragment, and asks for the next."""

    actor: int
    slot: int
    births: int = 0
    sequence: int = 0
    granted: bool = False
    version: int = 0

    @property
    def name(self) -> str:
        return f"{self.actor}-{self.slot}-{self.births}"


class Actor:
    """Streams that share weights; they lag behind by a tick."""

    def __init__(self, world: Any, number: int, rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.per_chunk = world.per_chunk
        self.streams = [Stream(number, slot) for slot in range(4)]
        self.version = 0

    def tick(self, published: int) -> None:
        for stream in self.streams:
            if not stream.granted:
                chunk = (stream.name, stream.sequence // self.per_chunk)
                self.world.say(stream.name, chunk[1], step_s=stream.slot + 1.0, task=f"task {stream.slot % 2}")
                stream.granted = self.world.reserve(chunk, version=self.version) == [True]
            elif self.rng.random() < 0.7:
                self.make(stream)
        self.version = published

    def make(self, stream: Stream) -> None:
        """Ends a fragment, which began with the weights of the last one's end."""
        closes = self.rng.random() < CLOSING
        if self.rng.random() >= LOSS:
            oldest = min(stream.version or self.version, self.version)
            self.world.append(stream.name, stream.sequence, oldest, newest=self.version, closes=closes)
        stream.sequence += 1
        stream.version = self.version
        if closes:
            stream.births, stream.sequence = stream.births + 1, 0
        stream.granted = not closes and stream.sequence % self.per_chunk != 0


class Learner:
    """Leases, trains, publishes and acks; leases one iteration ahead where that can work."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.ahead = world.limits.max_staleness > 0
        self.version = 1
        self.iterations = 0
        self.leases = 0
        self.training: int | None = None
        self.next: int | None = None
        self.busy_ticks = 0

    def tick(self) -> None:
        if self.training is None:
            self.training, self.next = self.next or self.lease(self.version), None
            self.busy_ticks = TRAINING_TICKS
            return
        if self.ahead and self.next is None:
            self.next = self.lease(self.version + 1)
        self.busy_ticks -= 1
        if self.busy_ticks == 0:
            self.version += 1
            self.world.hear(self.version)
            self.world.ack(self.training)
            self.training = None
            self.iterations += 1

    def lease(self, use_version: int) -> int | None:
        number = self.leases + 1
        chunks = FRAGMENTS_PER_ITERATION // self.world.per_chunk
        lent = self.world.lease(number, chunks, use_version, "least_used")
        if not lent:
            return None
        assert all(use_version - chunk.oldest_version <= self.world.limits.max_staleness for chunk in lent)
        self.leases = number
        return number


@pytest.mark.parametrize("max_reuse", range(1, 5))
@pytest.mark.parametrize("max_staleness", range(5))
@pytest.mark.parametrize("per_chunk", range(1, 5))
@pytest.mark.parametrize("balance", ["speed", "slot", "task"])
def test_replay_makes_progress_in_every_setting(
    make_world: Callable[..., Any], max_reuse: int, max_staleness: int, per_chunk: int, balance: str
) -> None:
    rng = Random(f"{max_reuse} {max_staleness} {per_chunk}")
    world = make_world(
        steps_per_iteration=FRAGMENTS_PER_ITERATION,
        per_chunk=per_chunk,
        max_reuse=max_reuse,
        max_staleness=max_staleness,
        grant_timeout_s=GRANT_TIMEOUT_S,
        balance=balance,
    )
    actors, learner = [Actor(world, number, rng) for number in range(2)], Learner(world)
    for tick in range(LONGEST_TICKS):
        world.clock.now_s += 1.0
        for actor in actors:
            actor.tick(learner.version)
        learner.tick()
        if tick % 20 == 0:
            world.replay.tick()
        if learner.iterations == ITERATIONS // 2 and len(actors) == 2:
            actors = [Actor(world, 2, rng)]
        if learner.iterations == ITERATIONS:
            break
    assert learner.iterations == ITERATIONS, world.replay.stats()
    assert world.faults() == []
