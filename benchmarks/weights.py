"""Weights: publishing and fetching them against bare gRPC streams of the same bytes.

    python benchmarks/weights.py [--rounds 5] [--case fetch-4 ...]

284 MB of float32 in 300 tensors, as many and as large as those of VPT 1x; every version is drawn anew.

    fetch-4    four actors follow parameters: GB/s of all together, from the announcement until the last of them has all
               tensors, verified, in memory. Limit: the same bytes in messages of 1 MiB from memory to four processes
               that drop them, from when they are told to read
    publish    a learner's publish in which every tensor changed: GB/s until it is acked. Limit: the same bytes in
               messages of 1 MiB to a server that writes one file and syncs it; both keep eight versions
    frozen-90  a tenth of the bytes changes: the share of all bytes that a publish and a fetch move
    bfloat16   all tensors change and travel as bfloat16: the share of their own bytes that a publish and a fetch move
    memory     the most that the server's process held while 1, 4 and 8 actors fetched; the limit is that of one

Each round runs all sides in turn, a different one first each time. The limit is the faster of a sync and an aio server.
"""

import argparse
import os
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count
from typing import TypeAlias

from harness.processes import forget_peak, peak_bytes
from harness.report import Round, line, medians, table
from harness.weights_set import Weights, draw, partly_changed, total_bytes
from harness.weights_sides import BARE_KINDS, Ours, bare, ours

ACTORS = 4
READERS = (1, 4, 8)
CHANGED = 0.1
BARS = {"fetch-4": 0.7, "publish": 0.5, "frozen-90": 0.15, "bfloat16": 0.55, "memory": 1.25}
"""Least shares of the limit, and most shares of the bytes and of one reader's memory."""

Measure: TypeAlias = Callable[[Weights], float]
"""Moves weights that were never moved before; returns the seconds that it took."""

_seeds = count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", nargs="+", choices=BARS, default=list(BARS))
    arguments = parser.parse_args()
    cases: dict[str, Callable[[int], str]] = {
        "fetch-4": fetch_4,
        "publish": publish,
        "frozen-90": frozen_90,
        "bfloat16": bfloat16,
        "memory": memory,
    }
    lines = [cases[case](arguments.rounds) for case in arguments.case]
    print("\n" + "\n".join(lines))


def new_weights() -> Weights:
    """Weights that were never drawn before."""
    return draw(next(_seeds))


def fetch_4(rounds: int) -> str:
    """Measures the case; returns its JSON line."""
    moved_gb = ACTORS * total_bytes(new_weights()) / 1e9
    with ExitStack() as stack:
        fleet = stack.enter_context(ours(new_weights()))
        actors = stack.enter_context(fleet.followed(ACTORS))
        sides: dict[str, Measure] = {"ours": partial(fleet.fetch, actors=actors)}
        for kind in BARE_KINDS:
            server = stack.enter_context(bare(kind, total_bytes(new_weights())))
            readers = stack.enter_context(server.read(ACTORS))
            sides[f"bare {kind}"] = partial(server.download, readers=readers)
        return against_limit("fetch-4", moved_gb, sides, rounds)


def publish(rounds: int) -> str:
    """Measures the case; returns its JSON line."""
    moved_gb = total_bytes(new_weights()) / 1e9
    with ExitStack() as stack:
        sides: dict[str, Measure] = {"ours": stack.enter_context(ours(new_weights())).publish}
        for kind in BARE_KINDS:
            sides[f"bare {kind}"] = stack.enter_context(bare(kind, total_bytes(new_weights()))).upload
        return against_limit("publish", moved_gb, sides, rounds)


def against_limit(case: str, moved_gb: float, sides: dict[str, Measure], rounds: int) -> str:
    """Runs the sides in turn, after a warm-up; prints the table; returns the JSON line."""
    for measure in sides.values():
        measure(new_weights())
    figures: list[Round] = []
    for number in range(rounds):
        turn = number % len(sides)
        order = [*sides][turn:] + [*sides][:turn]
        measured = {name: moved_gb / sides[name](new_weights()) for name in order}
        figures.append({name: measured[name] for name in sides})
    middle = medians(figures)
    limit = max(middle[f"bare {kind}"] for kind in BARE_KINDS)
    print(f"\n{table(f'{case}, GB/s', figures)}")
    print(f"share of the limit: {middle['ours'] / limit:.2f}, bar: >= {BARS[case]}", flush=True)
    return line("weights", case, "GB/s", middle["ours"], limit=limit)


def frozen_90(rounds: int) -> str:
    """Measures the case; returns its JSON line."""
    weights = new_weights()
    versions = (weights := partly_changed(weights, next(_seeds), CHANGED) for _ in range(rounds))
    return share_moved("frozen-90", ours(weights), versions)


def bfloat16(rounds: int) -> str:
    """Measures the case; returns its JSON line."""
    first = new_weights()
    return share_moved("bfloat16", ours(first, rounded=first.keys()), (new_weights() for _ in range(rounds)))


def share_moved(case: str, fleets: AbstractContextManager[Ours], versions: Iterable[Weights]) -> str:
    """Publishes versions, each fetched by one actor; prints the table; returns the JSON line."""
    figures = list[Round]()
    with fleets as fleet, fleet.followed(1) as actors:
        for weights in versions:
            before = moved_bytes(fleet)
            fleet.fetch(weights, actors)
            moved = [now - then for now, then in zip(moved_bytes(fleet), before, strict=True)]
            shares = [each / total_bytes(weights) for each in moved]
            figures.append({"published": shares[0], "fetched": shares[1], "both": sum(shares) / 2})
    share = medians(figures)["both"]
    print(f"\n{table(f'{case}, share of all bytes', figures)}")
    print(f"share moved: {share:.3f}, bar: <= {BARS[case]}", flush=True)
    return line("weights", case, "bytes/byte moved", 1 / share)


def moved_bytes(fleet: Ours) -> tuple[float, float]:
    """Bytes of tensors that parameters has received and sent."""
    with urllib.request.urlopen(f"http://{fleet.server.metrics_address}/metrics", timeout=10) as response:
        rows = dict(row.rsplit(" ", 1) for row in response.read().decode().splitlines() if not row.startswith("#"))
    prefix = "minefleet_parameters"
    return float(rows[f"{prefix}_publish_bytes_total"]), float(rows[f"{prefix}_fetch_bytes_total"])


def memory(rounds: int) -> str:
    """Measures the case; returns its JSON line."""
    figures = list[Round]()
    with ours(new_weights()) as fleet:
        for _ in range(rounds):
            figures.append({f"{readers} readers": peak_mb(fleet, readers) for readers in READERS})
    middle = medians(figures)
    least, most = (middle[f"{readers} readers"] for readers in (READERS[0], READERS[-1]))
    print(f"\n{table('memory, MB', figures, digits=0)}")
    print(f"{READERS[-1]} readers / {READERS[0]}: {most / least:.2f}, bar: <= {BARS['memory']}", flush=True)
    return line("weights", "memory", "1/MB", 1 / most, limit=1 / least)


def peak_mb(fleet: Ours, readers: int) -> float:
    """The most that the server held while so many new actors fetched the newest version."""
    os.sync()
    forget_peak(fleet.server.pid)
    with fleet.followed(readers):
        return peak_bytes(fleet.server.pid) / 1e6


if __name__ == "__main__":
    main()
