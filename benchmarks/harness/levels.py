"""Loads of `benchmarks/replay_fleet.py`, and how they are told."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report import line

CARRIED_SHARE = 0.95
"""Share of the offered fragments that must arrive."""
SPOILT_SHARE = 0.01
"""Share of the fragments that may be late or refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The results of a load."""

    actors: int
    steps_per_s: float
    offered_per_s: float
    """Fragments."""
    acked_per_s: float
    raw_gb_per_s: float
    payload_bytes: int
    ack_p50_s: float
    ack_p99_s: float
    late: float
    """Share of the fragments that were acked after their actor's next one was due."""
    refused: float
    """Refusals per fragment."""
    evicted: int
    actor_cores: float
    replay_cores: float
    consumer_cores: float

    @property
    def is_carried(self) -> bool:
        """Whether replay kept up."""
        has_arrived = self.acked_per_s >= CARRIED_SHARE * self.offered_per_s
        return has_arrived and self.late + self.refused <= SPOILT_SHARE and self.evicted == 0


def level_rows(levels: Sequence[Level]) -> list[list[str]]:
    """The table of a ramp."""
    rows = [
        "actors,steps/s each,fragments/s offered,acked,raw GB/s,packed MB/s,ack p50 ms,p99 ms,late %,refused %,evicted,"
        "replay cores,actors',consumer's,carried".split(",")
    ]
    for level in levels:
        rows.append(
            [
                f"{level.actors:,}",
                f"{level.steps_per_s:.0f}",
                f"{level.offered_per_s:.1f}",
                f"{level.acked_per_s:.1f}",
                f"{level.raw_gb_per_s:.2f}",
                f"{level.acked_per_s * level.payload_bytes / 1e6:.1f}",
                f"{level.ack_p50_s * 1e3:.1f}",
                f"{level.ack_p99_s * 1e3:.1f}",
                f"{level.late * 100:.1f}",
                f"{level.refused * 100:.1f}",
                str(level.evicted),
                f"{level.replay_cores:.2f}",
                f"{level.actor_cores:.2f}",
                f"{level.consumer_cores:.2f}",
                "yes" if level.is_carried else "no",
            ]
        )
    return rows


def largest_carried(levels: Sequence[Level]) -> Level:
    """The largest load that was carried, or the smallest load where none was."""
    carried = [level for level in levels if level.is_carried]
    return max(carried, key=lambda level: level.offered_per_s) if carried else levels[0]


def ramp_lines(compression: float, levels: Sequence[Level], steps_per_s: float) -> list[str]:
    """JSON lines: the largest load that was carried, its throughput, and the ack times at about half of it."""
    best = largest_carried(levels)
    half = min(levels, key=lambda level: abs(level.offered_per_s - best.offered_per_s / 2))
    figures = {
        "actors": ("actors", best.actors * best.steps_per_s / steps_per_s if best.is_carried else 0.0),
        "saturation": ("GB/s", best.raw_gb_per_s),
        "ack-p50": ("1/s", 1 / half.ack_p50_s),
        "ack-p99": ("1/s", 1 / half.ack_p99_s),
    }
    return [line("replay_fleet", f"{compression:g}x-{what}", unit, ours) for what, (unit, ours) in figures.items()]
