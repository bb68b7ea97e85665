"""Profiles a whole fleet while it trains: processor time of each step, by stage.

    python benchmarks/training_budget.py [--case pixels] [--seconds 20] [--set KEY=VALUE ...]

The kernel says what each thread of each process takes, exactly; py-spy, in an interpreter of its own, says what the
Python threads are at, a hundred times a second. A stage is what the innermost of the functions below is at. Threads
that wait are not counted. Divided by the steps trained on meanwhile, that is microseconds of processor time per step;
two cores have two million a second.
"""

import argparse
import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

from harness.acting_envs import make_bank
from harness.peers import install
from harness.processes import stat_s
from harness.report import aligned
from harness.training_stages import IDLE, NATIVE, stage_of
from harness.watching import GONE, family
from harness.whole_cases import CASES, share_cores
from harness.whole_ours import rows_of, train

RATE_HZ = 100
SPIED = ("actor", "replay", "learner")
ROLES = ("environments", "actor", "replay", "learner", "parameters", "launcher")

Times = dict[tuple[int, int], float]
"""Seconds of processor time by process and thread."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="pixels")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sampling")
    parser.add_argument("--warm-up", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of our configuration")
    arguments = parser.parse_args()
    share_cores()
    make_bank()
    spy = install("py_spy", constrained=False).with_name("py-spy")
    probe = Probe(spy, arguments.warm_up, arguments.seconds)
    train(arguments.case, arguments.set, seed=0, seconds=arguments.warm_up + arguments.seconds + 10, look=probe.look)
    print(report(probe))


class Probe:
    """Looks at a fleet once, after its warm-up."""

    def __init__(self, spy: Path, warm_up_s: float, seconds: float) -> None:
        self._spy, self._warm_up_s, self._seconds = spy, warm_up_s, seconds
        self.steps = 0.0
        self.cpu_s: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        """By role and stage."""

    def look(self, pid: int, run: Path) -> None:
        """Called now and then; measures when the warm-up is over."""
        rows = rows_of(run)
        if not self.steps and rows and rows[-1][0] - rows[0][0] > self._warm_up_s:
            self._measure(pid, run)

    def _measure(self, pid: int, run: Path) -> None:
        roles = family(pid)
        spied = {each: run.parent / f"spy-{each}" for each, role in roles.items() if role in SPIED}
        before, steps = thread_times(roles), rows_of(run)[-1][1]
        words = f"record -d {self._seconds:.0f} -r {RATE_HZ} --threads --idle --format raw".split()
        spies = [
            subprocess.Popen([self._spy, *words, "-p", str(each), "-o", str(path)], stdout=DEVNULL, stderr=DEVNULL)
            for each, path in spied.items()
        ]
        time.sleep(self._seconds)
        after, self.steps = thread_times(roles), rows_of(run)[-1][1] - steps
        for process in spies:
            process.wait()
        shares = {each: shares_of(path.read_text()) for each, path in spied.items()}
        for (each, thread), spent_s in after.items():
            used_s = spent_s - before.get((each, thread), 0.0)
            for stage, share in shares.get(each, {}).get(thread, {NATIVE: 1.0}).items():
                self.cpu_s[roles[each]][stage if each in shares else "all of it"] += used_s * share


def thread_times(pids: Mapping[int, str]) -> Times:
    """The time that each thread has used so far."""
    times: Times = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with suppress(*GONE):
                times[pid, int(path.parent.name)] = stat_s(path)
    return times


def shares_of(raw: str) -> dict[int, dict[str, float]]:
    """By thread, the share of its samples in each stage; threads that only wait are left out."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for line in raw.splitlines():
        stack, _, number = line.rpartition(" ")
        thread, *frames = stack.split(";")
        stage = stage_of(frames)
        if stage != IDLE:
            counts[int(thread.partition("(")[2].partition(")")[0])][stage] += int(number)
    return {thread: {stage: n / count.total() for stage, n in count.items()} for thread, count in counts.items()}


def report(probe: Probe) -> str:
    """A table, and one JSON line."""
    rows = [
        (role, stage, 1e6 * spent_s / probe.steps)
        for role in ROLES
        for stage, spent_s in sorted(probe.cpu_s[role].items(), key=lambda item: -item[1])
        if 1e6 * spent_s / probe.steps >= 0.5
    ]
    cells = [[f"{role}: {stage}", f"{micros:.0f}"] for role, stage, micros in rows]
    total = sum(micros for _, _, micros in rows)
    line = json.dumps({"benchmark": "training_budget", "unit": "us/step", "stages": {c: float(m) for c, m in cells}})
    return aligned([["stage", "us/step"], *cells, ["sum", f"{total:.0f}"]]) + "\n" + line


if __name__ == "__main__":
    main()
