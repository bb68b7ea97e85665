"""Rounds of kills of parameters, its learner and its actors, and what must hold after all of them.

learner ── submissions, acks ──▶ learner.jsonl ──┐
                                                 ├─▶ checks
actors ──── what they got ─────▶ actor-N.jsonl ──┘
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tests.parameters_process import RUN, ParametersProcess
from tests.role_process import TIMEOUT_S, wait_for

from minefleet.v1 import parameters_service_pb2 as pb

Victim = Literal["parameters in a publish", "parameters in a fetch", "learner", "actor"]
Row = dict[str, Any]

WITNESSES = Path(__file__).parent / "minefleet_parameters" / "witnesses.py"
ACTORS = 3
LONGEST_DELAY_S = 0.08
"""About as long as a publish takes."""
KEPT = 8


class Arena:
    """One parameters, one learner, three actors, and the moments at which they are killed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.parameters = ParametersProcess(directory)
        self.cut_publishes = 0
        """Kills that left a part of a publish on the disk."""
        self._random = random.Random(seed)
        self._moment = threading.Event()
        self._started_s = 0.0
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs all of them, and kills them at the end."""
        try:
            self._start_parameters()
            self._start_learner()
            for number in range(ACTORS):
                self._start_actor(number)
            self._wait_for_progress()
            yield
        finally:
            for child in self._children.values():
                child.kill()
                child.wait(TIMEOUT_S)

    def round(self, victim: Victim) -> None:
        """Kills one at a random moment, starts it again and waits until all have got on."""
        match victim:
            case "parameters in a publish" | "parameters in a fetch":
                self._wait_for_moment(publishing=victim == "parameters in a publish")
                self._kill_parameters()
            case "learner":
                self._wait_for_moment(publishing=True)
                self._kill("learner")
                self._start_learner()
            case "actor":
                self._wait_for_moment(publishing=False)
                number = self._random.randrange(ACTORS)
                self._kill(f"actor-{number}")
                self._start_actor(number)
        self._wait_for_progress()

    def check(self) -> None:
        """Looks at everything that was written down, and at what is left on the disk."""
        self._kill("learner")
        check_records(self.rows("learner"), [self.rows(f"actor-{number}") for number in range(ACTORS)])
        with self.parameters.stub() as stub:
            answer = stub.ListVersions(pb.ListVersionsRequest(), timeout=TIMEOUT_S)
        kept = {info.version for info in answer.versions}
        assert set(self._acked()[-KEPT:]) <= kept | set(range(max(kept) - KEPT + 1))
        wait_for(lambda: not self.parameters.leftovers())

    def rows(self, name: str) -> list[Row]:
        """The whole lines of a record."""
        path = self._record(name)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _record(self, name: str) -> Path:
        return self.parameters.directory / f"{name}.jsonl"

    def _acked(self) -> list[int]:
        return [row["version"] for row in self.rows("learner") if row.get("acked")]

    def _kill(self, name: str) -> None:
        self._children[name].kill()
        self._children[name].wait(TIMEOUT_S)

    def _start_parameters(self) -> None:
        self._started_s = time.time()
        self._children["parameters"] = self.parameters.start()
        wait_for(self.parameters.answers)
        assert [path for path in self._incoming() if path.stat().st_mtime < self._started_s] == []

    def _kill_parameters(self) -> None:
        acked = self._acked()
        self._kill("parameters")
        self.cut_publishes += bool(self._incoming())
        self._start_parameters()
        with self.parameters.client() as fresh:
            assert fresh.fetch()[0].version >= acked[-1]

    def _start_learner(self) -> None:
        """From its newest checkpoint, or from an older one, or from none."""
        done = [(row["epoch"], row["version"]) for row in self.rows("learner") if row.get("acked")]
        epoch, version = self._random.choice([(0, 0), *done[-5:-1], *done[-1:] * 5])
        self._start("learner", "learner", RUN, str(epoch), str(version))

    def _start_actor(self, number: int) -> None:
        self._start(f"actor-{number}", "actor")

    def _start(self, name: str, role: str, *arguments: str) -> None:
        record = str(self._record(name))
        command = [sys.executable, str(WITNESSES), role, self.parameters.address, record, *arguments]
        with (self.parameters.directory / f"{name}.log").open("ab") as log:
            self._children[name] = subprocess.Popen(command, stderr=log)

    def _wait_for_moment(self, *, publishing: bool) -> None:
        """In a publish, or just after one, when all actors fetch."""
        acked = len(self._acked())
        wait_for(lambda: bool(self._incoming()) if publishing else len(self._acked()) > acked)
        self._moment.wait(self._random.uniform(0, LONGEST_DELAY_S))

    def _incoming(self) -> list[Path]:
        found = list((self.parameters.store / "incoming").glob("*"))
        return [path for path in found if path.exists()]

    def _wait_for_progress(self) -> None:
        before = {name: len(self.rows(name)) for name in self._children if name != "parameters"}
        wait_for(lambda: all(len(self.rows(name)) > count + 2 for name, count in before.items()))


def check_records(learner: list[Row], actors: list[list[Row]]) -> None:
    """Versions only rise, mean one thing for ever, and are whole wherever they were read."""
    submitted = {(row["epoch"], row["version"]): row["checksum"] for row in learner if "checksum" in row}
    acked = {row["version"]: row["checksum"] for row in learner if row.get("acked")}
    numbers = [row["version"] for row in learner if row.get("acked")]
    assert all(before < after for before, after in pairwise(numbers)), numbers
    meaning: dict[int, str] = dict(acked)
    for rows in actors:
        for row in rows:
            assert row["checksum"] == submitted[row["epoch"], row["version"]], row
            assert meaning.setdefault(row["version"], row["checksum"]) == row["checksum"], row
        assert all(before["version"] <= after["version"] for before, after in pairwise(rows)), rows
