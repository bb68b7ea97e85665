"""The audit of `benchmarks/harness/auditing.py`: silent where all is well, and loud for each fault that is planted."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from harness.auditing import Audit, Name, audit
from harness.faulty import Faulty, Mark
from minefleet.core.fragment import Fragment
from minefleet.core.tree import tree_map
from minefleet.envs import schema_of
from minefleet.v1 import episode_pb2
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.running_episodes import RunningEpisodes

Fragments = list[tuple[Name, Fragment]]
Records = list[episode_pb2.EpisodeRecord]
ENV: dict[str, Any] = {"shape": (20,), "episode_length": 7}
LENGTH = 8
ONE = np.array([0])


class Stream:
    """One slot's stream, played and recorded as an actor does it."""

    def __init__(self, name: str, seed: int) -> None:
        self.fragments: Fragments = []
        self.records: Records = []
        self._name = name
        self._seeds = iter(range(seed, seed + 10_000))
        self._env = Faulty(**ENV)
        self._recorder = Recorder(schema_of(self._env), 1, LENGTH)
        self._episodes = RunningEpisodes(1, 0.99)
        self._obs, _ = self._env.reset(seed=next(self._seeds))
        self._first = True

    def step(self, action: int) -> None:
        if self._recorder.is_full(0):
            self.ship()
        self._recorder.act(ONE, self._rows(), np.array([action]), ONE, ONE, np.array([self._first]), ONE)
        self._obs, reward, terminated, truncated, _ = self._env.step(action)
        self._recorder.result(ONE, np.array([reward]), np.array([terminated]), np.array([truncated]))
        self._episodes.add(ONE, np.array([reward]), np.array([reward]), np.ones(1, np.uint32))
        self._first = terminated or truncated
        if truncated:
            self._recorder.cut(0, self._obs)
        if self._first:
            self._end(terminated=terminated, truncated=truncated)
            self._reset(None)

    def fail(self) -> None:
        """The environment fails, and another one takes its place."""
        self._recorder.fail(0)
        self._recorder.cut(0, self._obs)
        self._end(failure="hang")
        self._reset(next(self._seeds))

    def ship(self) -> None:
        fragment = self._recorder.close(0, self._obs)
        assert fragment is not None
        self.fragments.append(((self._name, len(self.fragments)), fragment))

    def _end(self, **how: Any) -> None:
        self.records.append(self._episodes.end(0, self._name, version=1, **how))

    def _reset(self, seed: int | None) -> None:
        if self._recorder.is_full(0):
            self.ship()
        self._obs, _ = self._env.reset(seed=seed)
        self._first = True

    def _rows(self) -> Any:
        return tree_map(lambda leaf: leaf[None], self._obs)


@pytest.fixture
def played() -> tuple[Fragments, Records]:
    """Two streams of several episodes, which failures cut in the middle, at the borders and before the first step."""
    rng, streams = np.random.default_rng(0), [Stream("a-0", 100), Stream("a-1", 20_000)]
    for stream in streams:
        for number in range(100):
            stream.step(int(rng.integers(4)))
            if rng.random() < 0.1:
                stream.fail()
            if number == 50:
                stream.fail()
                stream.fail()
        stream.ship()
    return [pair for stream in streams for pair in stream.fragments], [
        record for stream in streams for record in stream.records
    ]


def look(fragments: Fragments, records: Records, *, killed: bool = False) -> Audit:
    return audit(fragments, records, episode_length=ENV["episode_length"], killed=killed)


def altered(fragment: Fragment, **arrays: Any) -> Fragment:
    """A copy in which some entries differ: {name: {index: value}}."""
    changed = {}
    for name, entries in arrays.items():
        changed[name] = tree_map(np.copy, getattr(fragment, name))
        for index, value in entries.items():
            changed[name][index] = value
    return replace(fragment, **changed)


def rows(fragment: Fragment, order: list[int]) -> Fragment:
    """A fragment of these steps of another one, as if nothing were amiss."""
    places = {int(step): row for row, step in enumerate(fragment.cut_index)}
    kept = [(new, places[old]) for new, old in enumerate(order) if old in places]
    arrays: dict[str, Any] = {
        field.name: tree_map(lambda leaf: leaf[order], getattr(fragment, field.name))
        for field in fields(Fragment)
        if field.name not in ("cut_index", "cut_obs", "recurrent_state", "duration")
    }
    cut_obs = tree_map(lambda leaf: leaf[[row for _, row in kept]], fragment.cut_obs)
    return replace(fragment, **arrays, cut_index=np.array([new for new, _ in kept], np.int32), cut_obs=cut_obs)


def test_audit_of_a_good_store_finds_no_fault_and_counts_it(played: tuple[Fragments, Records]) -> None:
    found = look(*played)
    assert found.faults == []
    assert found.steps == 200
    assert found.failures["hang"] == found.failures.total() > 10
    assert found.episodes == len(played[1]) - found.failures["hang"] > 10
    crashes = [fragment.crash.any() for _, fragment in played[0]]
    assert any(crashes)
    assert any(not fragment.truncated[-1] and not fragment.terminated[-1] for _, fragment in played[0])


def poison(fragment: Fragment) -> Iterator[Fragment]:
    frame = np.frombuffer(Mark(1, 2, 3, 0).pack(poisoned=True), np.uint8)
    yield replace(fragment, obs=fragment.obs | {"frame": np.vstack([fragment.obs["frame"][:-1], frame])})
    yield replace(fragment, cut_obs=tree_map(np.zeros_like, fragment.cut_obs))
    yield replace(fragment, obs=fragment.obs | {"pulse": fragment.obs["pulse"] * np.nan})


def plants() -> dict[str, Callable[[Fragment], Fragment]]:
    """Faults of one fragment, by what the audit must say of them."""
    last = LENGTH - 1
    return {
        "poisoned observation": lambda each: next(poison(each)),
        "poisoned cut": lambda each: list(poison(each))[1],
        "poisoned pulse": lambda each: list(poison(each))[2],
        "doubled step": lambda each: rows(each, [0, 1, 1, 2, 3, 4, 5, 6]),
        "doubled last step": lambda each: rows(each, [*range(LENGTH), last]),
        "swapped pair": lambda each: rows(each, [0, 2, 1, *range(3, LENGTH)]),
        "hidden gap": lambda each: rows(each, [0, 1, 2, *range(4, LENGTH)]),
        "lost first step": lambda each: rows(each, list(range(1, LENGTH))),
        "another action": lambda each: altered(each, action={3: 3 - each.action[3]}),
        "another reward": lambda each: altered(each, reward={3: each.reward[2]}),
        "reward of nothing": lambda each: altered(each, reward={last: 0.0}),
        "an end that was none": lambda each: altered(each, terminated={2: not each.terminated[2]}),
        "a cut that was none": lambda each: altered(each, truncated={2: not each.truncated[2]}),
        "a crash that was none": lambda each: altered(each, crash={2: not each.crash[2]}),
        "a first that is none": lambda each: altered(each, first={2: not each.first[2]}),
    }


@pytest.mark.parametrize("plant", plants())
def test_audit_finds_each_fault_in_any_fragment(played: tuple[Fragments, Records], plant: str) -> None:
    fragments, records = played
    for number, (name, fragment) in enumerate(fragments):
        if len(fragment) == LENGTH:
            planted = [*fragments[:number], (name, plants()[plant](fragment)), *fragments[number + 1 :]]
            assert look(planted, records).faults, f"{plant} in {name}"


@pytest.mark.parametrize("killed", [False, True])
def test_audit_finds_a_fragment_that_is_missing_doubled_or_misnamed(
    played: tuple[Fragments, Records], killed: bool
) -> None:
    fragments, records = played
    for number in range(len(fragments) // 2 - 1):
        name, fragment = fragments[number]
        rest = fragments[:number] + fragments[number + 1 :]
        for planted in (
            rest,
            [*fragments, (name, fragment)],
            [*fragments, (("b-0", 0), fragment)],
            [*rest, ((name[0], name[1] + 1000), fragment)],
        ):
            assert look(planted, records, killed=killed).faults


@pytest.mark.parametrize("number", [0, 5, 10])
def test_audit_finds_episode_records_that_contradict_their_fragments(
    played: tuple[Fragments, Records], number: int
) -> None:
    fragments, records = played
    good = next(record for record in records[number:] if not record.failure)
    bad = next(record for record in records[number:] if record.failure and record.length)
    for record, fields_ in (
        (good, {"length": good.length + 1}),
        (good, {"episode_return": good.episode_return + 0.1}),
        (good, {"failure": "hang"}),
        (good, {"terminated": not good.terminated}),
        (bad, {"failure": ""}),
        (good, {"length": 0}),
    ):
        other = episode_pb2.EpisodeRecord()
        other.CopyFrom(record)
        for key, value in fields_.items():
            setattr(other, key, value)
        assert look(fragments, [other if each is record else each for each in records]).faults, fields_
    assert look(fragments, [each for each in records if each is not good]).faults
    assert look(fragments, [*records, good]).faults


def test_audit_misses_only_fragments_that_a_killed_actor_had_not_sent(played: tuple[Fragments, Records]) -> None:
    fragments, records = played
    ends = [number for number, ((_, sequence), _) in enumerate(fragments) if sequence == 0 and number]
    for end in (*ends, len(fragments)):
        cut = [pair for number, pair in enumerate(fragments) if number not in (end - 1, end - 2)]
        assert look(cut, records).faults
        assert look(cut, records, killed=True).faults == []
    early = [record for record in records if record.episode < 5]
    assert look(fragments, early).faults
    assert look(fragments, early, killed=True).faults == []
