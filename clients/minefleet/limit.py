"""Which stage of the ring limits a run, and by how much: from what the two loops wait for.

    actors' slots   environment, inference │ room, weights │ grant ......... waits for the learner
    learner's loop  training               │ replay, weights │ fragments ... waits for the actors

Each loop's time is told by what it goes to, and the shares of a loop sum to 1. What a loop waits for the other one is
its slack: it would turn faster if the other did. A loop that never waited, and from which a stage were taken that now
has the share a of its time, would turn

    1 / (1 - slack - a)

times as fast as it does, and the run goes at the pace of the slower loop. So with the stage s free the run would be at
most

    gain(s) = min(1 / (1 - grant - a_s), 1 / (1 - fragments - b_s))

times as fast, a_s being the stage's share of the slots' time and b_s that of the learner's. The stage with the largest
gain limits. Where the loops take turns, as with `max_staleness` 0, several stages have a gain; where both are busy all
the time, none has.

Where the learner waits for its own versions to come out, both loops stand still: that is nobody's slack but the time of
`weights`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

Stage = Literal["environment", "inference", "replay", "learner", "weights"]
STAGES: tuple[Stage, ...] = get_args(Stage)
CLEAR_GAIN = 1.25
"""A stage that gains less limits nothing worth a change: the others wait for it a fifth of their time at most."""
LARGEST_GAIN = 1000.0
"""What is said of a stage but for which nothing would be waited for."""
FULL = 0.95
"""Cores that are busy for this share of the time are all in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotShares:
    """What the slots of all actors wait for, each in [0, 1]; the sum is 1, or 0 while nothing is known."""

    environment: float = 0.0
    """A step or a reset."""
    inference: float = 0.0
    """From an observation to the action: the actor's own work on both, the batch and the policy."""
    grant: float = 0.0
    """Permission for the next chunk: replay holds as much as the learner can use."""
    room: float = 0.0
    """Replay to take what is queued."""
    weights: float = 0.0
    """Newer weights: those in use are too old for a chunk that there would be room for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopShares:
    """What the learner's loop spends its time on, each in [0, 1]; the sum is 1, or 0 while nothing is known."""

    training: float = 0.0
    """All that is not one of the others."""
    fragments: float = 0.0
    """Waiting until there are enough fragments."""
    replay: float = 0.0
    """Waiting for fragments that are there and are being read."""
    weights: float = 0.0
    """Waiting for fragments that nobody can make before versions are out which it has trained."""
    blocked: float = 0.0
    """Standing still so that weights may be copied or published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Which stage limits."""

    stage: Stage | None
    """None where no stage has a gain of `CLEAR_GAIN`."""
    gains: Mapping[str, float]
    """At most how many times as fast the run would be if the stage took no time, >= 1."""

    @property
    def gain(self) -> float:
        """That of the stage that limits, or the largest."""
        return max(self.gains.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What limits, and from what that follows."""

    slots: SlotShares
    loop: LoopShares
    actors_busy: float = 0.0
    """Share of the actors' cores that were busy, whoever used them, in [0, 1]; 0 while nothing is known."""
    learner_busy: float = 0.0
    """Likewise of the cores that the learner may use."""

    @property
    def limit(self) -> Limit | None:
        """None while one of the loops has not been seen at work."""
        return judge(self.slots, self.loop)

    @property
    def is_full(self) -> bool:
        """Whether the cores are all in use where the stage is that limits."""
        stage = self.limit.stage if self.limit is not None else None
        busy = {"learner": self.learner_busy, "environment": self.actors_busy, "inference": self.actors_busy}
        return busy.get(stage or "", max(self.actors_busy, self.learner_busy)) >= FULL

    def to_dict(self) -> dict[str, dict[str, float]]:
        """As a row of `metrics.jsonl` has it."""
        return {
            "slot_share": {name: getattr(self.slots, name) for name in names(SlotShares)},
            "loop_share": {name: getattr(self.loop, name) for name in names(LoopShares)},
            "busy_cores": {"actors": self.actors_busy, "learner": self.learner_busy},
            "limit_gain": dict(self.limit.gains) if self.limit is not None else {},
        }

    def figures(self) -> dict[str, float]:
        """As the learner's board says it."""
        return {f"{part}.{name}": value for part, numbers in self.to_dict().items() for name, value in numbers.items()}

    @classmethod
    def from_figures(cls, figures: Mapping[str, float]) -> "Verdict":
        """Inverts `figures`; what is missing is 0."""

        def of(part: str, kind: type[SlotShares] | type[LoopShares]) -> dict[str, float]:
            return {name: figures.get(f"{part}.{name}", 0.0) for name in names(kind)}

        return cls(
            slots=SlotShares(**of("slot_share", SlotShares)),
            loop=LoopShares(**of("loop_share", LoopShares)),
            actors_busy=figures.get("busy_cores.actors", 0.0),
            learner_busy=figures.get("busy_cores.learner", 0.0),
        )


def judge(slots: SlotShares, loop: LoopShares) -> Limit | None:
    """Finds the stage that limits; None while one of the loops has not been seen at work."""
    if not _total(slots) or not _total(loop):
        return None
    standstill = still(slots, loop)
    grant, fragments = slots.grant - standstill, loop.fragments + loop.weights - standstill
    shares: dict[Stage, tuple[float, float]] = {
        "environment": (slots.environment, 0.0),
        "inference": (slots.inference, 0.0),
        "replay": (slots.room, loop.replay),
        "learner": (0.0, loop.training),
        "weights": (slots.weights + standstill, loop.blocked + standstill),
    }
    gains: dict[str, float] = {
        stage: min(_faster(grant + of_slots), _faster(fragments + of_loop))
        for stage, (of_slots, of_loop) in shares.items()
    }
    stage = max(STAGES, key=lambda stage: gains[stage])
    return Limit(stage=stage if gains[stage] >= CLEAR_GAIN else None, gains=gains)


def still(slots: SlotShares, loop: LoopShares) -> float:
    """The share of its time that both loops stand still for a version that is not out, at most."""
    return min(loop.weights, slots.grant)


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Each one's share of the sum; all 0 where that is 0."""
    total = math.fsum(seconds.values())
    return {name: value / total if total > 0 else 0.0 for name, value in seconds.items()}


def names(kind: type[SlotShares] | type[LoopShares]) -> tuple[str, ...]:
    """What a loop's time is told by, in order."""
    return tuple(one.name for one in fields(kind))


def _faster(share: float) -> float:
    """How many times as fast a loop is without a share of its time."""
    return 1 / max(1 - share, 1 / LARGEST_GAIN)


def _total(told: SlotShares | LoopShares) -> float:
    return math.fsum(getattr(told, name) for name in names(type(told)))
