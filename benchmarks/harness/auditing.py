"""Proves from what replay holds of `harness.faulty` that every stored step is a good one, once and in its place.

A step shows by itself which one it is (see `harness.faulty`): its observation carries a mark; the mark of the
observation after it, its reward and the end of its episode follow from the mark and the action. So there is nothing to
compare with but the steps themselves and the episode records, which must tell the same story.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from harness.faulty import NO_ACTION, Mark, ending_of, read_mark, reward_of
from minefleet.core.fragment import Fragment
from minefleet.v1 import episode_pb2

Name = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A stored step."""

    place: str
    """Its fragment and its number in it, for people."""
    mark: Mark | None
    """Of what the policy saw; None where that was no good observation."""
    after: Mark | None
    """Of the observation after it, where that is stored too."""
    has_after: bool
    closes_fragment: bool
    action: int
    reward: float
    terminated: bool
    truncated: bool
    first: bool
    crash: bool

    @property
    def is_over(self) -> bool:
        """Whether the episode ends with it."""
        return self.terminated or self.truncated


@dataclass(kw_only=True, slots=True)
class Audit:
    """The findings of an audit."""

    steps: int = 0
    episodes: int = 0
    """Records of episodes that came to their end."""
    failures: Counter[str] = field(default_factory=Counter)
    """Records of episodes that a failure cut, by its kind."""
    faults: list[str] = field(default_factory=list)
    """Violations; empty where all is well."""


def audit(
    fragments: Sequence[tuple[Name, Fragment]],
    records: Sequence[episode_pb2.EpisodeRecord],
    *,
    episode_length: int,
    killed: bool = False,
) -> Audit:
    """Looks at every step and every record.

    Args:
        fragments: All that were stored, with their names.
        records: The episode log.
        episode_length: Of the environment.
        killed: Whether actors were killed: what they had not sent is no fault then.
    """
    found = Audit(steps=sum(len(fragment) for _, fragment in fragments))
    ordered = sorted(fragments, key=lambda pair: pair[0])
    found.faults += _doubles([name for name, _ in ordered], "fragment")
    streams = {name: list(group) for name, group in groupby(ordered, key=lambda pair: pair[0][0])}
    logs = {name: list(group) for name, group in groupby(sorted(records, key=_name_of), key=lambda log: log.stream)}
    seen: list[tuple[int, int, int]] = []
    for stream in sorted(streams.keys() | logs.keys()):
        stored = streams.get(stream, [])
        found.faults += _gaps(stream, "fragment", [sequence for (_, sequence), _ in stored])
        steps = [step for name, fragment in stored for step in steps_of(name, fragment)]
        seen += [step.mark[:3] for step in steps if step.mark is not None]
        found.faults += _misplaced(steps, episode_length)
        found.faults += _contradictions(stream, list(_episodes(steps)), logs.get(stream, []), killed=killed)
    found.faults += _doubles(sorted(seen), "step")
    found.failures.update(record.failure for record in records if record.failure)
    found.episodes = len(records) - found.failures.total()
    return found


def steps_of(name: Name, fragment: Fragment) -> Iterator[Step]:
    """The steps of a fragment."""
    cuts = {int(index): row for row, index in enumerate(fragment.cut_index)}
    for t in range(len(fragment)):
        yield Step(
            place=f"{name[0]}/{name[1]} step {t}",
            mark=_mark(fragment.obs["frame"][t], fragment.obs["pulse"][t]),
            after=_mark(fragment.cut_obs["frame"][cuts[t]], fragment.cut_obs["pulse"][cuts[t]]) if t in cuts else None,
            has_after=t in cuts,
            closes_fragment=t == len(fragment) - 1,
            action=int(fragment.action[t]),
            reward=float(fragment.reward[t]),
            terminated=bool(fragment.terminated[t]),
            truncated=bool(fragment.truncated[t]),
            first=bool(fragment.first[t]),
            crash=bool(fragment.crash[t]),
        )


def _mark(frame: NDArray[np.uint8], pulse: NDArray[np.float32]) -> Mark | None:
    """The mark of an observation of which every part agrees with it."""
    mark = read_mark(frame)
    return mark if mark is not None and pulse[0] == mark.step % 2 else None


def _misplaced(steps: Sequence[Step], episode_length: int) -> Iterator[str]:
    """Faults of single steps, and of the order of steps."""
    for number, step in enumerate(steps):
        mark = step.mark
        if mark is None:
            yield f"{step.place}: what the policy saw is no good observation"
            continue
        if step.first != (mark.step == 0) or (step.first and mark.action != NO_ACTION):
            yield f"{step.place}: first is {step.first} at {mark}"
        follower = Mark(mark.life, mark.episode, mark.step + 1, step.action)
        if step.reward != reward_of(follower):
            yield f"{step.place}: {step.reward} is not the reward of action {step.action} at {mark}"
        if (end := _end(step)) != _expected_end(step, mark, episode_length):
            yield f"{step.place}: terminated, truncated, crash are {end} at {mark}"
        needs_after = step.truncated or (step.closes_fragment and not step.terminated)
        if step.has_after != needs_after or (needs_after and step.after != follower):
            yield f"{step.place}: after {mark} and action {step.action} it keeps {step.after}"
        if number + 1 < len(steps):
            yield from _discontinuity(step, follower, steps[number + 1])


def _end(step: Step) -> tuple[bool, bool, bool]:
    return step.terminated, step.truncated, step.crash


def _expected_end(step: Step, mark: Mark, episode_length: int) -> tuple[bool, bool, bool]:
    """Terminated, truncated, crash. A failure may cut an episode anywhere but behind its end."""
    length, is_terminal = ending_of(mark.life, mark.episode, episode_length)
    if mark.step + 1 >= length:
        return is_terminal, not is_terminal, False
    return False, step.crash, step.crash


def _discontinuity(step: Step, follower: Mark, next_step: Step) -> Iterator[str]:
    """The fault between two steps of a stream.

    An episode that is not marked as cut can only have been cut where its fragment was already closed.
    """
    assert step.mark is not None
    if next_step.mark is None or next_step.mark == follower:
        if step.is_over and next_step.mark is not None:
            yield f"{next_step.place}: the episode goes on behind its end"
        return
    if not next_step.first or not (step.is_over or step.closes_fragment):
        yield f"{next_step.place}: {next_step.mark} follows {step.mark} and action {step.action}"
    elif next_step.mark.life == step.mark.life and next_step.mark.episode != step.mark.episode + 1:
        yield f"{next_step.place}: episode {next_step.mark.episode} follows {step.mark.episode} of the same life"
    elif next_step.mark.life != step.mark.life and next_step.mark.episode != 0:
        yield f"{next_step.place}: a life begins with episode {next_step.mark.episode}"


def _episodes(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Cuts a stream into its episodes."""
    episode: list[Step] = []
    for step in steps:
        if step.first and episode:
            yield episode
            episode = []
        episode.append(step)
    if episode:
        yield episode


def _contradictions(
    stream: str, episodes: Sequence[list[Step]], log: Sequence[episode_pb2.EpisodeRecord], *, killed: bool
) -> Iterator[str]:
    """Contradictions between the steps and the records of a stream. The last episode may have no record: it was not
    over."""
    yield from _gaps(stream, "episode record", [record.episode for record in log])
    told = [record for record in log if record.length]
    yield from (
        f"{_named(record)} has no step and no failure" for record in log if not (record.length or record.failure)
    )
    for number, (episode, record) in enumerate(zip(episodes, told, strict=False)):
        if not (killed and number == len(episodes) - 1):
            yield from _contradiction(episode, record)
    if killed:
        return
    for episode in episodes[len(told) :][:-1]:
        yield f"{episode[0].place}: the episode has no record"
    if len(episodes) > len(told) and episodes[-1][-1].is_over:
        yield f"{episodes[-1][0].place}: the episode is over and has no record"
    for record in told[len(episodes) :]:
        yield f"{_named(record)} has no stored step"


def _contradiction(episode: Sequence[Step], record: episode_pb2.EpisodeRecord) -> Iterator[str]:
    last = episode[-1]
    if len(episode) != record.length:
        yield f"{_named(record)} has {record.length} steps, {len(episode)} are stored from {episode[0].place} on"
    elif abs(sum(step.reward for step in episode) - record.episode_return) > 1e-6:
        yield f"{_named(record)} has another return than its stored steps"
    was_cut = last.crash or not last.is_over
    if was_cut != bool(record.failure):
        yield f"{_named(record)} has the failure {record.failure!r}, but {last.place} says crash={last.crash}"
    if not was_cut and (last.terminated, last.truncated) != (record.terminated, record.truncated):
        yield f"{_named(record)} has another end than {last.place}"


def _gaps(stream: str, what: str, numbers: Sequence[int]) -> Iterator[str]:
    """Numbers that are left out of 0, 1, ..., or doubled."""
    counts = Counter(numbers)
    for number in range(max(numbers, default=-1) + 1):
        if counts[number] != 1:
            yield f"{stream}: {what} {number} is there {counts[number]} times"


def _doubles(ordered: Sequence[tuple[object, ...]], what: str) -> Iterator[str]:
    for key, group in groupby(ordered):
        count = len(list(group))
        if count > 1:
            yield f"{what} {key} is stored {count} times"


def _name_of(record: episode_pb2.EpisodeRecord) -> Name:
    return record.stream, record.episode


def _named(record: episode_pb2.EpisodeRecord) -> str:
    return f"episode {record.episode} of {record.stream}"
