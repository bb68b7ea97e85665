"""What the histories of all processes say together: fragments, leases, lineages, and what was known when."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from tests.history.record import UNKNOWN, Call

Name = tuple[str, int]
"""A stream, and the number of a fragment, chunk or episode in it."""

LeaseName = tuple[int, int]
"""An epoch, and the number of a lease in it."""

REPLAY_CALLS = ("lease", "read", "ack", "release", "read_episodes")
"""What a learner asks of replay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Named as in the configuration."""

    fragments_per_chunk: int
    max_reuse: int
    max_staleness: int


class Made(NamedTuple):
    """A fragment as its actor made it."""

    stream: str
    sequence: int
    oldest_version: int
    newest_version: int
    digest: str
    closes_stream: bool

    @property
    def name(self) -> Name:
        return self.stream, self.sequence


class Lent(NamedTuple):
    """A chunk as replay lent it."""

    stream: str
    chunk: int
    fragments: int
    uses: int
    oldest_version: int

    @property
    def name(self) -> Name:
        return self.stream, self.chunk


@dataclass(slots=True)
class Lease:
    """A granted lease, and what was asked about it afterwards."""

    granted: Call
    """The first call that was answered with chunks."""
    closings: list[Call] = field(default_factory=list)
    """Acks and releases that may have had an effect."""

    @property
    def epoch(self) -> int:
        return int(self.granted.asked["epoch"])

    @property
    def use_version(self) -> int:
        return int(self.granted.asked["use_version"])

    @property
    def chunks(self) -> list[Lent]:
        return lent_in(self.granted)

    def acks(self) -> list[Call]:
        return [call for call in self.closings if call.kind == "ack"]

    def surely_acked(self) -> float:
        """When an ack of it was confirmed; never, if none was."""
        return min((call.back for call in self.acks() if call.is_ok), default=UNKNOWN)

    def perhaps_acked(self) -> float:
        """From when on it may count as acked."""
        return min((call.sent for call in self.acks()), default=UNKNOWN)

    def perhaps_released(self) -> float:
        """From when on it may count as released."""
        return min((call.sent for call in self.closings if call.kind == "release"), default=UNKNOWN)


class Timeline:
    """The largest of some numbers that were known before a moment."""

    def __init__(self, points: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(point for point in points if point[0] < UNKNOWN)
        self._moments = [moment for moment, _ in ordered]
        self._largest = list(accumulate((number for _, number in ordered), max))

    def before(self, moment: float, default: int = 0) -> int:
        place = bisect_left(self._moments, moment)
        return self._largest[place - 1] if place else default


class History:
    """The calls of all processes."""

    def __init__(self, calls: Iterable[Call], rules: Rules) -> None:
        self.rules = rules
        self.calls = sorted(calls, key=lambda call: call.sent)
        self.by_kind: dict[str, list[Call]] = defaultdict(list)
        for call in self.calls:
            self.by_kind[call.kind].append(call)
        self.made = {made.name: made for call in self.good_appends() for made in made_in(call)}
        self.acked = {name for call in self.good_appends() if call.is_ok for name in map(name_of, made_in(call))}
        self.chunks: dict[Name, list[Made]] = defaultdict(list)
        for made in sorted(self.made.values()):
            self.chunks[self.chunk_of(made.name)].append(made)
        self.leases = self._leases()
        self.lent: dict[Name, list[Lease]] = defaultdict(list)
        for lease in self.leases.values():
            for chunk in lease.chunks:
                self.lent[chunk.name].append(lease)
        self.lineages = self._lineages()

    def good_appends(self) -> list[Call]:
        """Appends that replay must take."""
        return [call for call in self.by_kind["append"] if not call.asked["bad"]]

    def bad_appends(self) -> list[Call]:
        """Appends that replay must refuse."""
        return [call for call in self.by_kind["append"] if call.asked["bad"]]

    def to_replay(self) -> list[Call]:
        """What learners asked of replay."""
        return [call for kind in REPLAY_CALLS for call in self.by_kind[kind]]

    def chunk_of(self, name: Name) -> Name:
        return name[0], name[1] // self.rules.fragments_per_chunk

    def oldest_version(self, chunk: Name) -> int:
        """The oldest version that acted in what was made of a chunk."""
        return min((made.oldest_version for made in self.chunks[chunk]), default=0)

    def is_abandoned(self, made: Made, epoch: int | float = math.inf) -> bool:
        """Whether a version of a lineage that epochs up to this one left behind may have acted in it."""
        spans = (span for of, span in self.lineages.items() if of <= epoch)
        return any(max(made.oldest_version, low + 1) <= min(made.newest_version, high - 1) for low, high in spans)

    def epochs(self) -> Timeline:
        """The newest epoch that replay has heard."""
        return Timeline((call.back, call.asked["epoch"]) for call in self.to_replay() if call.is_ok)

    def published(self) -> Timeline:
        """The newest version that may have been published."""
        return Timeline((call.sent, call.asked["version"] + 1) for call in self.by_kind["publish"])

    def heard(self) -> Timeline:
        """The newest version that replay was told of."""
        return Timeline((call.back, call.asked["version"]) for call in self.to_replay() if call.is_ok)

    def horizon(self) -> Timeline:
        """The newest version that a use was meant for, as far as replay must know it."""
        leases = ((lease.granted.back, lease.use_version) for lease in self.leases.values())
        return Timeline([*leases, *((call.back, call.asked["version"]) for call in self.to_replay() if call.is_ok)])

    def farthest_horizon(self) -> Timeline:
        """The newest version that a use may have been meant for, as far as replay can know it."""
        leases = ((call.sent, call.asked["use_version"]) for call in self.by_kind["lease"])
        return Timeline([*leases, *((call.sent, call.asked["version"] + 1) for call in self.by_kind["publish"])])

    def surely_used(self, chunk: Name, moment: float = UNKNOWN) -> int:
        """Uses of a chunk that were confirmed before a moment."""
        return sum(lease.surely_acked() < moment for lease in self.lent[chunk])

    def perhaps_used(self, chunk: Name, moment: float = UNKNOWN) -> int:
        """Uses of a chunk that may count at a moment."""
        return sum(lease.perhaps_acked() < moment for lease in self.lent[chunk])

    def _leases(self) -> dict[LeaseName, Lease]:
        leases: dict[LeaseName, Lease] = {}
        granted = (call for call in self.by_kind["lease"] if call.is_ok and call.answer["chunks"])
        for call in granted:
            leases.setdefault(lease_of(call), Lease(call))
        epochs = self.epochs()
        for call in (*self.by_kind["ack"], *self.by_kind["release"]):
            is_void = call.ending == "fail" and epochs.before(call.sent) > call.asked["epoch"]
            if lease_of(call) in leases and not is_void:
                leases[lease_of(call)].closings.append(call)
        return leases

    def _lineages(self) -> dict[int, tuple[int, int]]:
        """Of each epoch, the version that it resumed from and the first that it published."""
        opened = {call.answer["epoch"]: call for call in self.by_kind["open_epoch"] if call.is_ok}
        first: dict[int, int] = {}
        for call in self.by_kind["publish"]:
            first.setdefault(call.asked["epoch"], call.asked["version"] + 1)
        return {epoch: (call.asked["version"], first[epoch]) for epoch, call in opened.items() if epoch in first}


def name_of(made: Made) -> Name:
    return made.name


def made_in(call: Call) -> list[Made]:
    """The fragments of an append."""
    return [Made(*values) for values in call.asked["fragments"]]


def lent_in(call: Call) -> list[Lent]:
    """The chunks of an answered lease."""
    return [Lent(*values) for values in call.answer["chunks"]]


def lease_of(call: Call) -> LeaseName:
    return call.asked["epoch"], call.asked["lease"]


def is_complete(fragments: list[Made], rules: Rules) -> bool:
    """Whether these make a whole chunk."""
    return len(fragments) == rules.fragments_per_chunk or any(made.closes_stream for made in fragments)
