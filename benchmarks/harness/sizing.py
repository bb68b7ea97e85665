"""From what replay did to how many actors a shard carries, and the part of `docs/scaling.md` that is measured.

One replay process spends c₀ + c₁·b seconds on a fragment of b packed bytes, from Append to Read: c₀ is what a call
costs, c₁ what a byte costs. It is saturated when its actors' fragments take all of its time.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

HEADROOM = 0.7
"""Share of the saturation that one should plan for."""
FRAMES = ((64, 64, 3), (128, 128, 3), (224, 224, 3), (360, 640, 3))


class Cost(NamedTuple):
    """The cost of a fragment."""

    per_fragment_s: float
    per_byte_s: float

    def of(self, payload_bytes: float) -> float:
        """Seconds for a fragment of so many packed bytes."""
        return self.per_fragment_s + self.per_byte_s * payload_bytes


def fit(payload_bytes: Sequence[float], fragments_per_s: Sequence[float]) -> Cost:
    """Fits the two costs to rates at saturation, by least squares of the relative errors; neither is negative."""
    sizes, rates = np.array(payload_bytes), np.array(fragments_per_s)
    design = np.stack([rates, rates * sizes], axis=1)
    per_fragment_s, per_byte_s = np.linalg.lstsq(design, np.ones(len(rates)), rcond=None)[0]
    if per_fragment_s < 0:
        return Cost(0.0, float(1 / np.mean(rates * sizes)))
    if per_byte_s < 0:
        return Cost(float(1 / np.mean(rates)), 0.0)
    return Cost(float(per_fragment_s), float(per_byte_s))


def actors(cost: Cost, frame_bytes: int, compression: float, length: int, steps_per_s: float) -> int:
    """Actors of one environment each that a shard carries with headroom; a fragment has `length` + 1 frames."""
    payload_bytes = (length + 1) * frame_bytes / compression
    return int(HEADROOM * length / steps_per_s / cost.of(payload_bytes))


def sizing_rows(cost: Cost, compressions: Sequence[float], length: int, steps_per_s: float) -> list[list[str]]:
    """The sizing table, by frame and compression."""
    rows = [["frame", *(f"{compression:g}x" for compression in compressions)]]
    for frame in FRAMES:
        sizes = (actors(cost, int(np.prod(frame)), compression, length, steps_per_s) for compression in compressions)
        rows.append([" x ".join(map(str, frame)), *(f"{size:,}" for size in sizes)])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def machine() -> str:
    """This machine in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{len(os.sched_getaffinity(0))} cores ({model}), {memory_bytes / 2**30:.0f} GiB of memory"


def replace_measured(page: Path, text: str, part: str = "measured") -> None:
    """Replaces what lies between a page's comments `PART: begin` and `PART: end`."""
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no part between {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
