"""Reports a trial of an environment."""

import math
import time
from collections import Counter
from dataclasses import dataclass, field

from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import flatten
from minefleet_actor.pool import Failure, Kind, Ready

MIB = 2**20


@dataclass(kw_only=True, slots=True)
class Episode:
    """One that is being played, or was."""

    length: int = 0
    total: float = 0.0
    terminated: bool = False


@dataclass(kw_only=True, slots=True)
class EnvCheckReport:
    """Everything that one environment has answered."""

    start_s: float = 0.0
    steps: int = 0
    step_s: float = 0.0
    """Time spent in steps, in total."""
    longest_step_s: float = 0.0
    reset_s: list[float] = field(default_factory=list)
    """Of every reset that worked."""
    rewards: tuple[float, float] = (math.inf, -math.inf)
    """The smallest and the largest."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that ended."""
    failures: Counter[str] = field(default_factory=Counter)
    """By kind."""
    first_failures: dict[str, tuple[int, Failure]] = field(default_factory=dict)
    """Of each kind the first, and the steps before it."""
    rss_bytes: list[int] = field(default_factory=list)
    """After the first reset, and at the end."""
    ended_by: str = ""
    """Why it ended early."""
    _episode: Episode = field(default_factory=Episode)
    _began_s: float = 0.0

    def began(self) -> None:
        """A command was given."""
        self._began_s = time.monotonic()

    def take(self, ready: Ready) -> None:
        """Counts an answer."""
        took_s = time.monotonic() - self._began_s
        if ready.kind[0] == Kind.FAILED:
            failure = ready.failures[0]
            self.failures[failure.kind] += 1
            self.first_failures.setdefault(failure.kind, (self.steps, failure))
            self._episode = Episode()
        elif ready.kind[0] == Kind.RESET:
            self.reset_s.append(took_s)
        else:
            self._take_step(float(ready.reward[0]), took_s)
            if ready.terminated[0] or ready.truncated[0]:
                self._episode.terminated = bool(ready.terminated[0])
                self.episodes.append(self._episode)
                self._episode = Episode()

    def _take_step(self, reward: float, took_s: float) -> None:
        self.steps += 1
        self.step_s += took_s
        self.longest_step_s = max(self.longest_step_s, took_s)
        self.rewards = (min(self.rewards[0], reward), max(self.rewards[1], reward))
        self._episode.length += 1
        self._episode.total += reward


def describe_spaces(name: str, schema: Schema) -> str:
    """The spaces as the policy sees them, one line a leaf."""
    lines = [f"environment  {name}"]
    for title, tree in (("observation", schema.obs), ("action", schema.action)):
        lines += [f"{title:12} {f'{path}: ' if path else ''}{_leaf(leaf)}" for path, leaf in flatten(tree).items()]
    return "\n".join(lines)


def describe(report: EnvCheckReport) -> str:
    """The report for people; ends with the whole text of the first failure of each kind."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.failures.items()))
    lines = [
        f"start        {report.start_s:.2f} s",
        _steps(report),
        f"resets       {_mean_and_longest(report.reset_s)}",
        f"episodes     {_episodes(report.episodes)}",
        f"failures     {f'{report.failures.total()}: {kinds}' if kinds else 'none'}",
        f"memory       {_memory(report.rss_bytes)}",
    ]
    lines += [f"ended early  {report.ended_by}"] * bool(report.ended_by)
    for kind, (steps, failure) in sorted(report.first_failures.items()):
        lines.append(f"\nthe first {kind}, after {steps:,} steps:\n{failure.text.rstrip()}")
    return "\n".join(lines)


def _leaf(leaf: Leaf) -> str:
    shape = f"{leaf.dtype} {list(leaf.shape)}"
    if leaf.categories:
        return f"{leaf.kind}, {shape}, of {', '.join(map(str, leaf.categories))}"
    low = min(leaf.low) if isinstance(leaf.low, tuple) else leaf.low
    high = max(leaf.high) if isinstance(leaf.high, tuple) else leaf.high
    return f"{leaf.kind}, {shape}, {low:g} to {high:g}"


def _steps(report: EnvCheckReport) -> str:
    if not report.steps:
        return "steps        none"
    low, high = report.rewards
    return (
        f"steps        {report.steps:,}: {report.steps / report.step_s:,.0f} steps/s between resets, the longest "
        f"{1e3 * report.longest_step_s:.1f} ms; rewards from {low:g} to {high:g}"
    )


def _memory(rss_bytes: list[int]) -> str:
    moments = zip(rss_bytes, ("after the first reset", "at the end"), strict=False)
    return ", ".join(f"{size / MIB:.1f} MiB {moment}" for size, moment in moments) or "unknown"


def _mean_and_longest(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"{len(seconds)}: {1e3 * sum(seconds) / len(seconds):.1f} ms each, the longest {1e3 * max(seconds):.1f} ms"


def _episodes(episodes: list[Episode]) -> str:
    if not episodes:
        return "none ended"
    count, terminated = len(episodes), sum(episode.terminated for episode in episodes)
    total = sum(episode.total for episode in episodes) / count
    length = sum(episode.length for episode in episodes) / count
    return (
        f"{count}: mean return {total:.2f}, mean length {length:.1f}; {terminated} terminated, "
        f"{count - terminated} truncated"
    )
