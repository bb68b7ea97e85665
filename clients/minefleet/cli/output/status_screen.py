"""Draws the status of a run as one screen, in a fixed order and in units that people read."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minefleet.cli.output.readable_text import age, size
from minefleet.monitoring.bottleneck import Bottleneck
from minefleet.monitoring.status import RoleStatus, RunStatus

STYLES = {"running": "green", "paused": "yellow", "waiting": "yellow", "starting": "cyan", "draining": "cyan"}
STATS = {
    "slots": "environments",
    "iteration": "iteration",
    "policy_version": "version",
    "newest_version": "newest version",
    "oldest_running_version": "oldest in use",
    "kept_versions": "versions kept",
    "watchers": "watchers",
    "env_steps": "env steps",
    "trained_steps": "trained steps",
    "env_steps_per_s": "speed",
    "sps": "speed",
    "episodes": "episodes",
    "episode_return_mean": "return",
    "eval_return_mean": "evaluation",
    "learner_wait_ratio": "waits for data",
    "snapshot_lag": "iterations without a snapshot",
    "episode_failures": "failed episodes",
    "env_failures": "failed environments",
    "resetting_slots": "resetting",
    "cooling_down_slots": "cooling down",
    "blocked_for_grant": "waiting for a grant",
    "blocked_for_room": "waiting for room",
    "blocked_for_weights": "waiting for weights",
    "blocked_for_pace": "waiting for their pace",
    "blocked_for_balance": "waiting for balance",
    "queued_fragments": "fragments to send",
    "live_steps": "steps held",
    "ready_steps": "steps ready",
    "leased_steps": "steps leased",
    "coming_steps": "steps coming",
    "capacity_steps": "room for",
    "expired_steps": "steps expired",
    "evicted_steps": "steps evicted",
    "corrupt_steps": "steps corrupt",
    "oldest_lease_seconds": "oldest lease",
    "unsynced_seconds": "not synced for",
    "payload_disk_bytes": "on disk",
    "processor_seconds": "processor time",
}
"""Names of the numbers of roles and of the run's last row, in the order of the screen; `--json` has all of them."""
RUN_STATS = (
    """iteration env_steps trained_steps policy_version episodes episode_return_mean eval_return_mean sps""".split()
)
FAILURES = {
    "episode_failures": "failed episodes",
    "episode_cut_share": "cut",
    "episode_return_uncut_mean": "else return",
}
TASK_STATS = {
    "episodes": "episodes",
    "return_mean": "return",
    "length_mean": "length",
    "failures": "failures",
    "cut_share": "cut",
}
SHARES = {"played_share": "played", "trained_share": "trained", "staleness": "staleness", "age_s": "age"}
MAX_SHOWN_TASKS = 8
"""Tasks on the screen, the most played ones."""


def render(status: RunStatus) -> RenderableType:
    """The status as one screen: the run's numbers, its pause or bottleneck, who is up, and the roles' own numbers."""
    summary = [Text(line) for line in _summary(status.metrics) if line]
    pause = [Text(), Text(f"training is paused: {status.pause}", style="bold yellow")] if status.pause else []
    run = (Text(status.run_dir, style="bold"), *summary, *pause, *_bottleneck(status.bottleneck))
    if not status.roles:
        return Group(*run, Text("no role is up", style="yellow"))
    roles = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("role", "state", "up", "pid", "address", "metrics"):
        roles.add_column(column, overflow="fold", no_wrap=column == "role")
    stats = Table.grid(padding=(0, 2))
    for role in status.roles:
        roles.add_row(*_cells(role))
        if line := _line(role.stats, STATS):
            stats.add_row(Text(role.name, style="dim"), Text(line))
    return Group(*run, Text(), roles, Text(), stats)


def _cells(role: RoleStatus) -> list[Text]:
    state = Text(role.state, style=STYLES.get(role.state, "red"))
    if role.detail:
        state.append(f": {role.detail}", style="dim")
    up = age(role.uptime_s) if role.uptime_s else ""
    shown = (up, str(role.pid or ""), role.address, role.metrics_address)
    return [Text(role.name), state, *map(Text, shown)]


def _summary(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield _line(metrics, {name: STATS[name] for name in RUN_STATS})
    yield from _failures(metrics)
    yield from _tasks(metrics)
    yield from _shares(metrics)


def _bottleneck(found: Bottleneck | None) -> Iterator[RenderableType]:
    """The shares of both loops' time that are not zero, and the bottleneck."""
    if found is None:
        return
    times = Table.grid(padding=(0, 2))
    for title, part in (("slots", found.slots), ("learner", found.loop)):
        shares = (f"{name} {share:.0%}" for name, share in part.items() if round(share, 2))
        times.add_row(Text(title, style="dim"), Text("  ".join(shares)))
    yield from (Text(), times, Text(found.sentence, style="bold"))


def _failures(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The number of failed episodes, their kinds, and the effect on the mean return."""
    if metrics.get("episode_failures"):
        kinds = sorted(metrics.get("episode_failures_by_kind", {}).items())
        yield f"{_line(metrics, FAILURES)}  by kind: {'  '.join(f'{kind} {n:,}' for kind, n in kinds) or 'unknown'}"
        yield "the tracebacks are in logs/actor-*.log of the run"


def _tasks(metrics: Mapping[str, Any]) -> Iterator[str]:
    tasks: Mapping[str, Mapping[str, Any]] = metrics.get("tasks", {})
    most_played = sorted(tasks, key=lambda name: tasks[name]["episodes"], reverse=True)
    for name in most_played[:MAX_SHOWN_TASKS]:
        yield f"task {name}: {_line(tasks[name], TASK_STATS)}"
    if len(tasks) > MAX_SHOWN_TASKS:
        yield f"and {len(tasks) - MAX_SHOWN_TASKS} more tasks, in metrics.jsonl"


def _shares(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Each task's share of the steps, where there are several tasks; what starves; and the streams that do."""
    shares: Mapping[str, Mapping[str, Any]] = metrics.get("step_shares", {})
    for task, share in list(shares.items())[:MAX_SHOWN_TASKS] if len(shares) > 1 else ():
        yield f"steps of {task or '(no task)'}: {_line(share, SHARES)}"
    yield from metrics.get("step_warnings", {}).values()
    for stream in metrics.get("starved_streams", ()):
        why = "  ".join(f"{steps:,} {reason}" for reason, steps in sorted(stream["dropped_steps"].items()))
        trained = f"{stream['trained_steps']:,} of {stream['played_steps']:,} steps trained on"
        yield f"stream {stream['stream']}: {trained}  {why}"


def _line(numbers: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The numbers that have a label and are not zero, in the labels' order."""
    return "  ".join(f"{labels[name]} {_shown(name, numbers[name])}" for name in labels if numbers.get(name))


def _shown(name: str, value: float) -> str:
    """A number in the unit that its name ends with."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith(("_share", "_ratio")):
        return f"{value:.0%}"
    if name.endswith(("sps", "_per_s")):
        return f"{value:,.0f}/s"
    if name.endswith(("_seconds", "_s")):
        return age(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
