"""Draws mutants of the services, and says which tests catch them.

`trace` runs tests under coverage and keeps, per line, the tests that ran it, in child processes, too. `draw`
chooses mutants by a seed. `judge` applies one after another to the checkout it stands in and runs, fastest first, the
tests that run the mutated line, until one fails. Needs `pip install coverage cosmic-ray`; use a clone, since files are
changed under the tests' feet.

    python tests/mutants.py trace --data traced -- -m 'not soak'
    python tests/mutants.py draw --seed 29 --count 60 --out mutants.json
    python tests/mutants.py judge --data traced --mutants mutants.json --out judged.jsonl
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TRACED = "services"
TESTS_AT_ONCE = 200
LIMIT_S = 900.0
"""A mutant that keeps one round of its tests busy for so long is caught: it hangs."""
CONFIG = """[run]
source = {root}/services
context = ${{MINEFLEET_TEST-}}
data_file = {data}/coverage
parallel = true
patch = subprocess, _exit, fork
disable_warnings = no-data-collected, module-not-imported, couldnt-parse, dynamic-conflict
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of a file, changed; found again by its text and its neighbours' where the file has changed since."""

    path: str
    line: int
    operator: str
    before: list[str]
    after: list[str]
    neighbours: list[str]


class Tracer:
    """Pytest's plugin that tells coverage, here and in child processes, which test is running, and keeps durations."""

    def __init__(self, data: Path) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._out = data / f"seconds-{os.getpid()}.json"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        import coverage  # Not among the requirements of the tests.

        os.environ["MINEFLEET_TEST"] = item.nodeid
        if current := coverage.Coverage.current():
            current.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps(self._seconds))


def pytest_configure(config: pytest.Config) -> None:
    """Lets `-p mutants` trace, as `trace` starts it."""
    if data := os.environ.get("MINEFLEET_TRACE"):
        config.pluginmanager.register(Tracer(Path(data)))


def trace(data: Path, arguments: list[str]) -> int:
    """Runs pytest under coverage; several may add to one directory."""
    data.mkdir(parents=True, exist_ok=True)
    config = data / "coveragerc"
    config.write_text(CONFIG.format(root=ROOT, data=data.absolute()))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-p", "mutants"]
    env = {**os.environ, "MINEFLEET_TRACE": str(data.absolute()), "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run([*command, *arguments], env=env, cwd=ROOT, check=False).returncode


def lines_of_functions(source: str) -> set[int]:
    """Numbers of the lines that run when a function is called, not when its module is imported."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def sites(path: Path) -> Iterator[tuple[str, int, int]]:
    """Operator, occurrence and line of everything in a file that can be mutated."""
    from cosmic_ray.ast import get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text()
    allowed = lines_of_functions(source)
    tree = get_ast(source)
    stack, nodes = [tree], []
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(reversed(getattr(node, "children", [])))
    for name in operator_names():
        if get_operator(name).arguments():
            continue  # One that must be told what to change.
        operator = get_operator(name)()
        occurrence = 0
        for node in nodes:
            for (line, _), _ in operator.mutation_positions(node):
                if line in allowed:
                    yield name, occurrence, line
                occurrence += 1


def draw(seed: int, count: int) -> Iterator[Mutant]:
    """Chooses a place uniformly, then one of the operators that fit there."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    chance = random.Random(seed)
    places: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for file in sorted((ROOT / TRACED).rglob("*.py")):
        for operator, occurrence, line in sites(file):
            places[str(file.relative_to(ROOT)), line].append((operator, occurrence))
    left = sorted(places)
    while count:
        path, line = left.pop(chance.randrange(len(left)))
        operator, occurrence = chance.choice(places[path, line])
        before = (ROOT / path).read_text()
        after = mutate_code(before, get_operator(operator)(), occurrence)
        if after is None or after == before:
            continue
        old, new = before.splitlines(), after.splitlines()
        first = next(index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        last = next(index for index, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
        neighbours = [*old[max(0, first - 2) : first], *old[len(old) - last : len(old) - last + 2]]
        yield Mutant(path, first + 1, operator, old[first : len(old) - last], new[first : len(new) - last], neighbours)
        count -= 1


def place(mutant: Mutant) -> int:
    """Index of the mutant's first line in the file as it is now; ValueError where it is not to be found."""
    lines = (ROOT / mutant.path).read_text().splitlines()
    size = len(mutant.before)
    found = [index for index in range(len(lines)) if lines[index : index + size] == mutant.before]
    if not found:
        raise ValueError(f"{mutant.path}:{mutant.line} no longer reads {mutant.before}")

    def likeness(index: int) -> tuple[int, int]:
        around = lines[max(0, index - 2) : index] + lines[index + size : index + size + 2]
        return -sum(line in around for line in mutant.neighbours), abs(index + 1 - mutant.line)

    return min(found, key=likeness)


def tests_of(data: Path, path: str, line: int) -> list[str]:
    """Tests that ran a line, fastest first; of a module whose fixtures are shared, all."""
    import coverage

    stored = coverage.CoverageData(str(data / "coverage"))
    stored.read()
    traced = next((name for name in stored.measured_files() if name.endswith("/" + path)), None)
    contexts = stored.contexts_by_lineno(traced).get(line, []) if traced else []
    seconds: dict[str, float] = defaultdict(float)
    for file in data.glob("seconds-*.json"):
        seconds.update(json.loads(file.read_text()))
    names = {context for context in contexts if context in seconds}
    shared = {name.partition("::")[0] for name in names if 'scope="' in (ROOT / name.partition("::")[0]).read_text()}
    names |= {name for name in seconds if name.partition("::")[0] in shared}
    return sorted(names, key=lambda name: seconds[name])


def first_failure(tests: list[str]) -> str:
    """The first test that fails, '' where none does."""
    for start in range(0, len(tests), TESTS_AT_ONCE):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-rfE",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "--timeout=120",
        ]
        try:
            done = subprocess.run(
                [*command, *tests[start : start + TESTS_AT_ONCE]],
                check=False,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode not in (0, 5):
            rows = [row for row in done.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
            return (
                rows[0][:200]
                if rows
                else f"pytest ended with {done.returncode}: {done.stdout[-200:]}{done.stderr[-200:]}"
            )
    return ""


def judge(data: Path, mutant: Mutant, only: str) -> dict[str, Any]:
    """Applies a mutant, runs its tests and takes it back."""
    started = time.monotonic()
    index = place(mutant)
    file = ROOT / mutant.path
    text = file.read_text()
    lines = text.splitlines()
    tests = [name for name in tests_of(data, mutant.path, index + 1) if not only or only in name]
    lines[index : index + len(mutant.before)] = mutant.after
    try:
        file.write_text("\n".join(lines) + "\n")
        caught = first_failure(tests)
    finally:
        file.write_text(text)
    return {**asdict(mutant), "tests": len(tests), "caught_by": caught, "seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["trace", "draw", "judge"])
    parser.add_argument("--data", type=Path, default=Path("traced"))
    parser.add_argument("--mutants", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--part", default="0/1", help="the K-th of N parts of the mutants")
    parser.add_argument("--only", default="", help="only tests whose name has this")
    given, rest = parser.parse_known_args()
    if given.action == "trace":
        return trace(given.data, [argument for argument in rest if argument != "--"])
    if given.action == "draw":
        given.out.write_text(json.dumps([asdict(mutant) for mutant in draw(given.seed, given.count)], indent=1) + "\n")
        return 0
    part, parts = map(int, given.part.split("/"))
    for values in json.loads(given.mutants.read_text())[part::parts]:
        row = judge(given.data, Mutant(**values), given.only)
        with given.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        sys.stdout.write(f"{row['path']}:{row['line']} {row['after']} -> {row['caught_by'] or 'SURVIVED'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
