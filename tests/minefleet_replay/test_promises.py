"""R3 to R10 under whatever order of calls and crashes Hypothesis finds, against a model of a few dictionaries."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from minefleet.core.errors import ConflictError, FencedError, NotFoundError, OverloadedError, RejectedError
from minefleet_replay.state.deduplication import WINDOW
from minefleet_replay.state.lease_table import MAX_OPEN
from minefleet_replay.tools.fsck import fsck

PER_CHUNK = 2
MAX_REUSE = 2
MAX_STALENESS = 1
SETTINGS = st.sampled_from([{}, {}, {"max_reuse": 1}, {"max_reuse": 3}, {"max_staleness": 0}, {"max_staleness": 3}])
"""Live keys of an iteration; none for those of the configuration."""
MAX_CHUNKS = 5
MAX_STEPS = MAX_CHUNKS * PER_CHUNK
LONGEST = 3
"""Steps of the longest fragment."""

STREAMS = st.sampled_from("abc")
AGES = st.sampled_from([0, 0, 0, 1, 2])
OFTEN = st.sampled_from([False, False, True])
RARELY = st.sampled_from([False] * 7 + [True])
Name = tuple[str, int]


class Promises(RuleBasedStateMachine):
    """A replay, and what it must be like."""

    def __init__(self, world: Any) -> None:
        super().__init__()
        self.world = world
        self.payloads: dict[Name, bytes] = {}
        """Every acked fragment."""
        self.versions: dict[Name, int] = {}
        self.lengths: Counter[str] = Counter()
        """Next sequence of each stream."""
        self.chunks: dict[str, tuple[int, int]] = {}
        """Number and first sequence of the chunk that each stream is in."""
        self.open: dict[int, list[Name]] = {}
        self.acked: dict[int, list[Name]] = {}
        self.uses: Counter[Any] = Counter()
        self.rotten: set[Name] = set()
        self.abandoned: set[int] = set()
        self.steps = 0
        self.version = 1
        self.number = 0
        self.older: Any = None
        self.max_reuse, self.max_staleness = MAX_REUSE, MAX_STALENESS
        """In force: those of the last lease that was asked for."""
        self.floor = 0
        """Earlier versions were too stale under limits that were in force before."""
        self.granted_reuse: dict[Any, int] = {}
        """The limit under which each chunk was leased last."""

    @rule(
        stream=STREAMS,
        fragments=st.lists(st.tuples(AGES, st.integers(1, LONGEST), OFTEN), min_size=1, max_size=4),
        skips=RARELY,
    )
    def append(self, stream: str, fragments: list[tuple[int, int, bool]], skips: bool) -> None:
        self.lengths[stream] += skips
        for age, steps, closes in fragments:
            self.append_one(stream, max(0, self.version - age), steps, closes)

    def append_one(self, stream: str, version: int, steps: int, closes: bool) -> None:
        sequence, (number, start) = self.lengths[stream], self.chunks.setdefault(stream, (0, 0))
        payload, closes = f"{stream}/{sequence}".encode(), closes or sequence >= start + PER_CHUNK - 1
        try:
            outcome = self.world.append(
                stream, sequence, version, payload=payload, closes=closes, chunk=(number, start), steps=steps
            )
        except (OverloadedError, RejectedError):
            return
        if closes:
            self.chunks[stream] = number + 1, sequence + 1
        self.steps += steps
        assert outcome == "expired" or (outcome == "stored" and self.is_fresh(version))
        self.payloads[stream, sequence], self.versions[stream, sequence] = payload, version
        self.lengths[stream] = sequence + 1

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.payloads)))
        assert self.world.append(*name, self.versions[name], payload=self.payloads[name]) == "duplicate"
        stream, sequence = name
        newest = sorted(number for other, number in self.payloads if other == stream)[-WINDOW:]
        try:
            outcome = self.world.append(*name, self.versions[name], payload=b"other")
        except ConflictError:
            return
        # Of an older name only the number is remembered: what comes under it again is taken for the same.
        assert outcome == "duplicate" and sequence not in newest, "other bytes were taken for a known name"

    @rule(
        chunks=st.integers(1, 2),
        ahead=st.integers(0, 1),
        order=st.sampled_from(["least_used", "uniform", "oldest"]),
        settings=SETTINGS,
    )
    def lease(self, chunks: int, ahead: int, order: str, settings: dict[str, int]) -> None:
        self.number += 1
        try:
            lent = self.world.lease(self.number, chunks, self.version + ahead, order, **settings)
        except OverloadedError:
            assert len(self.open) == MAX_OPEN
            return
        self.come_into_force(**settings)
        names = [tuple(chunk.name) for chunk in lent]
        steps = [chunk.steps for chunk in lent]
        assert len(set(names)) == len(names)
        assert not lent or sum(steps) >= chunks * PER_CHUNK > sum(steps) - max(steps)
        for chunk in lent:
            self.check_lent(chunk, self.version + ahead)
        if lent:
            self.open[self.number] = names
            self.granted_reuse.update(dict.fromkeys(names, self.max_reuse))
            again = self.world.lease(self.number, chunks, self.version + ahead, order, **settings)
            assert [tuple(chunk.name) for chunk in again] == names

    def come_into_force(self, max_reuse: int = MAX_REUSE, max_staleness: int = MAX_STALENESS) -> None:
        if max_staleness != self.max_staleness:
            self.floor = max(self.floor, self.version - self.max_staleness)
        self.max_reuse, self.max_staleness = max_reuse, max_staleness

    def check_lent(self, chunk: Any, use_version: int) -> None:
        sequences = [fragment.sequence for fragment in chunk.fragments]
        first = chunk.fragments[0].chunk_start
        assert sequences == list(range(first, first + len(sequences))) and chunk.fragments[-1].closes_chunk
        for sequence, payload in zip(sequences, self.world.payloads([chunk]), strict=True):
            name = (chunk.name.stream, sequence)
            assert use_version - self.versions[name] <= self.max_staleness and self.versions[name] >= self.floor
            assert self.versions[name] not in self.abandoned
            assert payload == (None if name in self.rotten else self.payloads[name])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), acks=st.booleans())
    def close(self, data: st.DataObject, acks: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        (self.world.ack if acks else self.world.release)(number)
        names = self.open.pop(number)
        if acks:
            self.acked[number] = names
            self.uses.update(names)

    @precondition(lambda self: self.acked)
    @rule(data=st.data())
    def ack_again(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.acked)))
        self.world.ack(number)
        try:
            self.world.release(number)
        except NotFoundError:
            return
        raise AssertionError("an acked lease was released")

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.world.hear(self.version)

    @rule(lost=st.sampled_from([0, 1, 2, 3, 20]))
    def take_over(self, lost: int) -> None:
        """The learner crashed or was rolled back, and resumes from a checkpoint that lacks its last versions."""
        self.older, resumed = self.world.learner, max(0, self.version - lost)
        self.abandoned |= set(range(resumed + 1, self.version + 1))
        self.version += 1
        self.world.become(self.older.epoch + 1, self.version, resumed, self.version)
        self.open.clear()
        self.acked.clear()

    @precondition(lambda self: self.older is not None)
    @rule()
    def come_back_fenced(self) -> None:
        try:
            self.world.replay.close_lease(self.older, self.number, "acked")
        except FencedError:
            return
        raise AssertionError("a fenced learner was heard")

    @precondition(lambda self: self.payloads)
    @rule(data=st.data())
    def rot(self, data: st.DataObject) -> None:
        """Bytes of a stored fragment change on the disk."""
        held = [
            (chunk.name.stream, one) for chunk in self.world.replay.transactions.state.index for one in chunk.fragments
        ]
        if held:
            stream, fragment = data.draw(st.sampled_from(held))
            self.world.spoil(fragment.number)
            self.rotten.add((stream, fragment.sequence))

    @rule(stream=STREAMS, ahead=st.integers(0, 2))
    def reserve(self, stream: str, ahead: int) -> None:
        self.world.reserve((stream, self.chunks.get(stream, (0, 0))[0] + ahead), version=self.version)

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def tick(self, seconds: float) -> None:
        self.world.clock.now_s += seconds
        self.world.replay.tick()

    @rule(gently=st.booleans())
    def restart(self, gently: bool) -> None:
        if gently:
            self.world.restart()
        else:
            self.world.crash(self.verify)

    def verify(self, directory: Path) -> None:
        faults = fsck(directory, self.world.limits)["faults"]
        assert [fault for fault in faults if not fault.startswith("payload: ")] == []

    def is_fresh(self, version: int) -> bool:
        return version >= max(self.version - self.max_staleness, self.floor) and version not in self.abandoned

    @invariant()
    def every_fragment_is_in_one_bucket(self) -> None:
        assert self.world.faults() == []
        assert self.world.figure("appended_fragments") == len(self.payloads)
        assert self.world.figure("appended_steps") == self.steps

    @invariant()
    def every_fragment_is_held_or_its_departure_is_explained(self) -> None:
        keeper = self.world.replay.transactions
        drops = [json.loads(row) for _, row in keeper.store.scan("drops")]
        gone = {(drop["stream"], sequence) for drop in drops for sequence in drop["sequences"]}
        held = {(chunk.name.stream, one.sequence) for chunk in keeper.state.index for one in chunk.fragments}
        assert gone | held == set(self.payloads)
        assert not gone & held

    @invariant()
    def acked_uses_and_open_leases_stay_below_max_reuse(self) -> None:
        charged = self.uses + Counter(name for names in self.open.values() for name in names)
        assert all(count <= self.granted_reuse[name] for name, count in charged.items())
        for chunk in self.world.replay.transactions.state.index:
            assert chunk.uses == self.uses[tuple(chunk.name)]
            assert chunk.leases or (chunk.uses < self.max_reuse and self.is_fresh(chunk.oldest_version))
        leases = {
            number: len(lease.chunks) for number, lease in self.world.replay.transactions.state.leases.open.items()
        }
        assert leases == {number: len(names) for number, names in self.open.items()}

    @invariant()
    def the_limits_of_the_last_lease_are_in_force(self) -> None:
        limits = self.world.replay.transactions.state.limits
        assert (limits.max_reuse, limits.max_staleness) == (self.max_reuse, self.max_staleness)

    @invariant()
    def the_store_is_bounded(self) -> None:
        assert self.world.figure("held_steps") <= MAX_STEPS

    def teardown(self) -> None:
        self.world.close()


def test_replay_keeps_its_promises_under_any_order_of_calls_and_crashes(make_world: Callable[..., Any]) -> None:
    def machine() -> Promises:
        return Promises(
            make_world(per_chunk=PER_CHUNK, max_reuse=MAX_REUSE, max_staleness=MAX_STALENESS, max_chunks=MAX_CHUNKS)
        )

    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # Any function that makes a machine will do.
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
