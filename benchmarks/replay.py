"""Replay: ours against Reverb and against a bare log, in GB/s of decoded arrays.

    python benchmarks/replay.py [--rounds 5] [--fragments 1024] [--case crafter-append ...] [--threads 1]

    crafter-append, crafter-sample  fragments of 64 x (64, 64, 3) Crafter frames, recorded once; they pack about 11-fold
    random-append, random-sample    a tenth as many of 256 x (128, 128, 3) random bytes, every one of which travels

Each round runs ours, Reverb and the limit in turn: a client process with as many threads on a server process each, the
same fragments, fresh stores. A figure is the time from the first call to the last answer, after a warm-up. Both sides
compare every sampled array with the one appended, in an untimed pass; for Reverb, which samples with replacement, the
first round's pass goes on until every fragment was seen. Append: `insert` is the peer. Sample: `Client.sample` on what
was inserted; the dataset's ways, which read ahead, and what the trajectory writer wrote stand beside it.
Crafter is measured with both codecs that a run may choose: zstd, the default, which packs better, and lz4, which is
faster; like the peer, we are represented by the faster one.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.fragments import KINDS, load, total_bytes
from harness.peers import BENCHMARKS, PEERS, install
from harness.recording import record
from harness.report import Round, line, medians, table

CASES = tuple(f"{kind}-{operation}" for kind in KINDS for operation in ("append", "sample"))
RANDOM_SHARE = 10
"""Fragments of Crafter per fragment of random bytes: these are 16 times as large."""

Figures = dict[str, dict[str, float]]
"""GB/s by operation and way."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fragments", type=int, default=1024, help="of Crafter, >= 20 (default: 1024)")
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--threads", type=int, default=1, help="that append, on every side (default: 1)")
    arguments = parser.parse_args()
    reverb, lines = install("reverb", constrained=False), []
    for kind in KINDS:
        cases = [case for case in arguments.case if case.startswith(kind)]
        if cases:
            count = arguments.fragments if kind == "crafter" else arguments.fragments // RANDOM_SHARE
            announce(kind, count)
            rounds = [
                measure(reverb, kind, count, arguments.threads, cases, number) for number in range(arguments.rounds)
            ]
            lines += [report(case, [each[case.partition("-")[2]] for each in rounds]) for case in cases]
    print("\n".join(lines))


def announce(kind: str, count: int) -> None:
    """Makes sure that there are so many fragments, and says how much that is."""
    if kind == "crafter":
        record(count)
    print(f"{kind}: {count} distinct fragments, {total_bytes(load(kind, count)) / 1e9:.2f} GB", flush=True)


def measure(reverb: Path, kind: str, count: int, threads: int, cases: Sequence[str], number: int) -> Figures:
    """One round: all sides in turn, a different one first each time."""
    arguments = [kind, str(count), "--threads", str(threads)]
    if f"{kind}-sample" not in cases:
        arguments.append("--append-only")
    check = ["--check-all"] if number == 0 else []
    codecs = ["zstd", "lz4"] if kind == "crafter" else ["zstd"]
    sides = [
        *([sys.executable, "-m", "harness.replay_ours", *arguments, "--compression", codec] for codec in codecs),
        [str(reverb), str(PEERS / "reverb_replay.py"), *arguments, *check],
        [sys.executable, "-m", "harness.replay_limit", *arguments],
    ]
    turn = number % len(sides)
    figures: Figures = {}
    for side in sides[turn:] + sides[:turn]:
        for operation, ways in run(side).items():
            figures.setdefault(operation, {}).update(ways)
    return figures


def run(side: Sequence[str]) -> Figures:
    """Runs one side alone on an idle disk; returns what it prints last."""
    os.sync()
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(side, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(side)} failed: {done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(case: str, rounds: Sequence[Round]) -> str:
    """Prints the table of a case; returns its JSON line."""
    order = sorted(
        rounds[0], key=lambda way: (not way.startswith("ours"), not way.startswith("Reverb"), way != "limit", way)
    )
    rows = [{way: each[way] for way in order} for each in rounds]
    print(f"\n{table(f'{case}, GB/s', rows)}", flush=True)
    middle = medians(rows)
    peer = middle["Reverb insert" if case.endswith("append") else "Reverb sample inserted"]
    ours = max(middle[way] for way in order if way.startswith("ours"))
    return line("replay", case, "GB/s", ours, peer=peer, limit=middle["limit"])


if __name__ == "__main__":
    main()
