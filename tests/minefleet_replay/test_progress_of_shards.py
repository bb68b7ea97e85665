"""Shards starve nobody: the actors' own lanes and grants on several replays, a learner, and an actor's death."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from minefleet.config.shards import share
from minefleet_actor.grants import Grants
from minefleet_actor.lanes import Lane, Lanes
from minefleet_actor.shipping import Parcel
from minefleet_replay.names import ChunkName

CHUNKS_PER_ITERATION = 5
ITERATIONS = 8
TRAINING_TICKS = 3
GRANT_TIMEOUT_S = 20.0
LONGEST_TICKS = 2000


class Versions(NamedTuple):
    """Stands for a fragment: which versions acted in it."""

    oldest: int
    newest: int


class Door:
    """One replay as an actor sees it: stands for client and shipper."""

    def __init__(self, world: Any) -> None:
        self.world = world

    def reserve(self, policy_version: int, chunks: list[tuple[str, int]], **told: object) -> Any:
        return self.world.replay.reserve(policy_version, [ChunkName(*chunk) for chunk in chunks])

    def has_room(self, coming: int) -> bool:
        return True

    def send(self, parcel: Parcel) -> None:
        versions: Any = parcel.fragment
        self.world.append(parcel.stream, parcel.sequence, versions.oldest, newest=versions.newest)


class Actor:
    """Slots that wait and act as the actor's loop lets them, in ticks of a second."""

    def __init__(self, name: str, worlds: list[Any], slots: int, rng: Random) -> None:
        self.clock = worlds[0].clock
        self.rng = rng
        self.version = 0
        lanes = [self.lane(world) for world in worlds]
        per_chunk = worlds[0].limits.fragments_per_chunk
        self.lanes = Lanes(name, slots, lanes, fragments_per_chunk=per_chunk)
        self.sequence = [0] * slots
        self.began = [0] * slots
        self.held = [True] * slots
        for slot in range(slots):
            self.lanes.wish(slot, 0)

    def lane(self, world: Any) -> Lane:
        door: Any = Door(world)
        grants = Grants(
            door,
            version=lambda: self.version,
            granted=lambda: None,
            renew_s=GRANT_TIMEOUT_S / 3,
            max_staleness=1,
            clock=self.clock,
        )
        return Lane(name="", grants=grants, shipper=door)

    def tick(self, published: int) -> None:
        for lane in self.lanes:
            lane.grants.ask()
        for slot in range(len(self.sequence)):
            if self.held[slot]:
                self.wait(slot)
            elif self.rng.random() < 0.7:
                self.end_fragment(slot)
        self.version = published

    def wait(self, slot: int) -> None:
        if self.lanes.may_start(slot, self.sequence[slot], after_another=False):
            self.held[slot] = False
            self.began[slot] = self.version
            self.lanes.wish(slot, self.sequence[slot] + 1)

    def end_fragment(self, slot: int) -> None:
        fragment: Any = Versions(min(self.began[slot], self.version), self.version)
        self.lanes.send(slot, self.sequence[slot], fragment, closes_stream=False)
        self.sequence[slot] += 1
        self.lanes.wish(slot, self.sequence[slot])
        self.held[slot] = True


class Learner:
    """Leases its part from every shard, trains, publishes and acks; leases one iteration ahead where that can work."""

    def __init__(self, worlds: list[Any]) -> None:
        self.worlds = worlds
        self.ahead = worlds[0].limits.max_staleness > 0
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
            self.finish(self.training)

    def finish(self, number: int) -> None:
        self.version += 1
        for world in self.worlds:
            world.hear(self.version)
            world.ack(number)
        self.training = None
        self.iterations += 1

    def lease(self, use_version: int) -> int | None:
        number = self.leases + 1
        lent = [
            world.lease(number, world.limits.chunks_per_iteration, use_version, "least_used") for world in self.worlds
        ]
        if not all(lent):
            return None
        self.leases = number
        return number


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("spare_slots", [0, 1])
@pytest.mark.parametrize(("max_reuse", "max_staleness"), [(1, 0), (1, 1), (1, 3), (2, 1), (3, 0), (3, 2)])
@pytest.mark.parametrize("per_chunk", [1, 2])
def test_an_actor_with_a_slot_for_every_shard_serves_them_all_after_another_died(
    make_world: Callable[..., Any], shards: int, spare_slots: int, max_reuse: int, max_staleness: int, per_chunk: int
) -> None:
    rng = Random(f"{shards} {spare_slots} {max_reuse} {max_staleness} {per_chunk}")
    worlds = [
        make_world(
            fragments_per_iteration=share(CHUNKS_PER_ITERATION, shards, shard) * per_chunk,
            fragments_per_chunk=per_chunk,
            max_reuse=max_reuse,
            max_staleness=max_staleness,
            grant_timeout_s=GRANT_TIMEOUT_S,
        )
        for shard in range(shards)
    ]
    actors = [Actor("large", worlds, 4, rng), Actor("small", worlds, shards + spare_slots, rng)]
    learner = Learner(worlds)
    for tick in range(LONGEST_TICKS):
        for world in worlds:
            world.clock.now_s += 1.0
        for actor in actors:
            actor.tick(learner.version)
        learner.tick()
        if tick % 20 == 0:
            for world in worlds:
                world.replay.tick()
        if learner.iterations == ITERATIONS // 2 and len(actors) == 2:
            del actors[0]
        if learner.iterations == ITERATIONS:
            break
    assert learner.iterations == ITERATIONS, [world.replay.figures() for world in worlds]
    assert [fault for world in worlds for fault in world.faults()] == []
