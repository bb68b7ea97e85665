"""Shows a run's progress: reads its `metrics.jsonl`, and writes to a terminal or as plain lines."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from minefleet.cli.output.readable_text import duration, from_here
from minefleet.config import FleetConfig
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.journaled_pauses import WAYS_ON, pause_reason
from minefleet.monitoring.jsonl_tail import MetricsTail
from minefleet.monitoring.live_settings_by_iteration import config_to_come
from minefleet.monitoring.plot import CURVE_FILE
from minefleet.runs.run_yaml import JOURNAL_FILE, Run

LINE_INTERVAL_S = 5.0
"""Between two plain lines."""
WINDOW = 20
"""Iterations over which speeds are averaged."""
BAR_WIDTH = 40
SPARKLINE_WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"
ACHIEVEMENT = "achievement/"
STARVED = "starved: "
"""Begins the key of a warning about a task."""

Row = Mapping[str, Any]


class Progress:
    """One run's progress on a console: a live view where that is a terminal, plain lines elsewhere."""

    def __init__(
        self, run: Run, console: Console, clock: Callable[[], float] = time.monotonic, *, is_shared: bool = False
    ) -> None:
        """Reads the rows that there are.

        Args:
            run: The run.
            console: Where it is shown.
            clock: Tells seconds.
            is_shared: Whether a debugger may have the terminal as well; then only new rows are drawn.
        """
        self._is_shared = is_shared
        self._run = run
        self._console = console
        self._clock = clock
        self._began_s = clock()
        self._tail = MetricsTail(run.metrics)
        self._begin_with(self._tail.read())
        self._journal_bytes, self._pause = 0, ""
        self._next_line_s = self._began_s
        self._is_drawn = False
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._take(self._tail.read())
        if self._rows and self._live is None:
            self.say(self.line(""))

    def say(self, text: str) -> None:
        """Prints something that happened, above the live view."""
        self._console.print(Text(text), soft_wrap=True)

    def tick(self, roles: str) -> bool:
        """Shows what is new, and the names of the roles that are up; says whether an iteration was finished."""
        had_rows = bool(self._rows)
        rows = self._take(self._tail.read())
        is_first = bool(rows) and not had_rows
        self._look_for_pause()
        if self._live is not None:
            self._live.update(self._view(roles), refresh=bool(rows) or not (self._is_shared and self._is_drawn))
            self._is_drawn = True
        elif is_first or self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + LINE_INTERVAL_S
            self.say(self.line(roles))
        return bool(rows)

    def _begin_with(self, before: Sequence[Row]) -> None:
        """Takes over the rows that there are when the launch begins, or when the run has gone back."""
        self._iteration = before[-1]["iteration"] if before else 0
        self._config = config_to_come(self._run)
        self._rows: deque[Row] = deque(maxlen=WINDOW)
        """The last ones since."""
        self._returns: dict[int, float] = {}
        """By iteration, of all launches."""
        self._record_returns(before)
        self._reached = {name for row in before for name in achievements(row)}
        self._warned = {about for row in before[-1:] for about in row.get("step_warnings", {})}

    def _take(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Keeps new rows and says what they are the first to say; returns them, none where they are old ones again."""
        if rows and rows[0]["iteration"] <= self._iteration:
            self._begin_with(rows)
            return []
        if any("changed_keys" in row for row in rows):
            self._config = config_to_come(self._run)
        self._record_returns(rows)
        for row in rows:
            self._rows.append(row)
            self._iteration = row["iteration"]
            self._warn(row.get("step_warnings", {}))
            for name in sorted(achievements(row) - self._reached):
                self._reached.add(name)
                self.say(f"first {name} after {row['env_steps']:,} env steps")
        return rows

    def _record_returns(self, rows: Sequence[Row]) -> None:
        means = {row["iteration"]: row["episode_return_mean"] for row in rows}
        self._returns |= {iteration: mean for iteration, mean in means.items() if mean is not None}

    def _look_for_pause(self) -> None:
        """Prints that training is paused, and that it goes on, where the journal has grown."""
        journal, before = self._run.directory / JOURNAL_FILE, self._pause
        if journal.is_file() and (size := journal.stat().st_size) != self._journal_bytes:
            self._journal_bytes, self._pause = size, pause_reason(read_whole_journal(self._run.directory))
        if self._pause != before:
            reason = f"paused, the policy has collapsed: {self._pause}; {WAYS_ON}"
            self.say(reason if self._pause else "goes on after the pause")

    def _warn(self, warnings: Mapping[str, str]) -> None:
        """Prints a starving task, once until it recovers."""
        for about in warnings.keys() - self._warned:
            self.say(f"warning: {warnings[about]}")
        self._warned = set(warnings)

    def line(self, roles: str) -> str:
        """The progress in one line."""
        facts = self._facts(roles)
        return "  ".join((f"[{duration(self._elapsed_s)}]", *(f"{name} {value}" for name, value in facts.items())))

    def _view(self, roles: str) -> Constrain:
        """At most nine lines, but for long paths; narrower than the terminal, which echoes a Ctrl-C behind the last."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        fraction, facts = self._fraction(), self._facts(roles)
        share = Text.assemble(f"{fraction:.0%}", *(("  ", facts["left"], " left") if "left" in facts else ()))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=fraction, width=BAR_WIDTH), share)
        table.add_row(Text(duration(self._elapsed_s)), bar)
        for name, value in self._rows_of_view(facts, roles):
            table.add_row(Text(name), value)
        return Constrain(table, self._console.width - len("^C"))

    def _rows_of_view(self, facts: Mapping[str, str], roles: str) -> Iterator[tuple[str, Text]]:
        if self._pause:
            yield "paused", Text(f"the policy has collapsed: {self._pause}", style="yellow")
        if not self._rows:
            yield "starting roles", Text(roles or "none is up yet")
            return
        row = self._rows[-1]
        mean = Text.assemble((facts["return"], "bold"))
        if self._returns:
            mean.append(f"  best {max(self._returns.values()):.2f}")
        if row.get("eval_return_mean") is not None:
            mean.append(f"  evaluation {row['eval_return_mean']:.2f}")
        yield "return", mean.append("  ").append(sparkline([*self._returns.values()]), style="cyan")
        yield "env steps", Text(f"{facts['env steps']}  {facts['steps/s']} steps/s")
        numbers = {"entropy": _number(row.get("entropy")), "KL": _number(row.get("approx_kl"), ".4f")}
        shown = {"version": facts["version"], "staleness": facts["staleness"]} | numbers
        yield "policy", Text("  ".join(f"{name} {value}" for name, value in shown.items()))
        if "failures" in facts:
            yield "failures", Text(facts["failures"])
        if starved := starved_shares(row):
            yield "starved", Text("; ".join(starved), style="yellow")
        yield "up", Text(roles)
        paths = (self._run.logs / "learner.log", self._run.directory / CURVE_FILE)
        yield "files", Text("  ".join(str(from_here(path)) for path in paths if path.exists()), style="dim")

    def _facts(self, roles: str) -> dict[str, str]:
        if not self._rows:
            return {"up": roles or "nothing yet", "waiting for": "a request" if self._pause else "the first iteration"}
        row, left_s = self._rows[-1], time_left_s(self._config, self._rows, self._elapsed_s)
        target, iterations = self._config.stop.env_steps, self._config.train_config.num_iterations
        bound = f" of {target:,}" if target else f" (iteration {row['iteration']:,} of {iterations:,})"
        return {
            "env steps": f"{row['env_steps']:,}{bound}",
            "steps/s": _number(row["sps"], ",.0f"),
            "return": _number(row["episode_return_mean"]),
            **_failures(row),
            "version": str(row["policy_version"]),
            "staleness": _number(row["staleness_mean"]),
            **({"paused": "until a request"} if self._pause else {"left": "?" if left_s is None else duration(left_s)}),
        }

    def _fraction(self) -> float:
        if not self._rows:
            return 0.0
        row = self._rows[-1]
        return self._config.fraction_done(row["iteration"], row["env_steps"], self._elapsed_s)

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._began_s


def show_checking() -> AbstractContextManager[object]:
    """Says in a terminal, until it is done, that the environment is checked: its libraries take seconds to import."""
    return Console(stderr=True).status("checking the environment")


def sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """The values as bars, from the least to the most; those of more than `width` as means of neighbours."""
    count = min(width, len(values))
    bounds = [len(values) * number // count for number in range(count + 1)] if count else []
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(bounds)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1)) if span else 0] for mean in means)


def starved_shares(row: Row) -> list[str]:
    """The tasks that starve, with their shares of the steps."""
    shares = row.get("step_shares", {})
    return [
        f"{task or 'the run'} trained {share['trained_share']:.0%}, played {share['played_share']:.0%}"
        for task, share in shares.items()
        if f"{STARVED}{task}" in row.get("step_warnings", {})
    ]


def achievements(row: Row) -> set[str]:
    """Names of the achievements that at least one of the last episodes has reached."""
    metrics: Mapping[str, float] = row.get("episode_metrics") or {}
    return {
        name.removeprefix(ACHIEVEMENT) for name, share in metrics.items() if name.startswith(ACHIEVEMENT) and share > 0
    }


def _failures(row: Row) -> dict[str, str]:
    """The number of failed episodes, and the share of the last ones that a failure cut; empty while none has."""
    failures, share = row.get("episode_failures"), row.get("episode_cut_share")
    return {"failures": f"{failures:,}" + (f" (cut {share:.0%})" if share else "")} if failures else {}


def time_left_s(config: FleetConfig, rows: "deque[Row]", launch_s: float) -> float | None:
    """Until the first stop condition is met at the present speed, seconds; None while the speed is unknown."""
    first, last = rows[0], rows[-1]
    seconds = last["wall_s"] - first["wall_s"]
    if seconds <= 0:
        return None
    left: list[float] = [
        (config.train_config.num_iterations - last["iteration"]) * seconds / (last["iteration"] - first["iteration"])
    ]
    steps = last["env_steps"] - first["env_steps"]
    if config.stop.env_steps and steps > 0:
        left.append((config.stop.env_steps - last["env_steps"]) * seconds / steps)
    if config.stop.minutes:
        left.append(60 * config.stop.minutes - launch_s)
    return max(0.0, min(left))


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
