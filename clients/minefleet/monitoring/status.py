"""Queries every role of a run, and names the stage that limits it with the key to turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minefleet.core.errors import ConfigError, DeadlineError, FleetError, UnavailableError, translated
from minefleet.monitoring.bottleneck import Bottleneck, find_in
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import OPERATOR, Credentials, read_credentials
from minefleet.rpc.durations import in_seconds
from minefleet.rpc.enum_names import role_word, state_word
from minefleet.runs.run import RUN_FILE, read_run
from minefleet.v1 import status_service_pb2, status_service_pb2_grpc

ROLES_DIRECTORY = "roles"
TIMEOUT_S = 2.0
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Only there does a card's pid mean a process of this machine."""
STYLES = {"running": "green", "paused": "yellow", "waiting": "yellow", "starting": "cyan", "draining": "cyan"}
SHOWN_STATS = ("iteration", "env_steps", "trained_steps", "policy_version", "episodes", "episode_return_mean", "sps")
"""Numbers of the last line of metrics on the screen."""
SHOWN_TASK_STATS = ("episodes", "return_mean", "length_mean", "failures", "cut_share")
SHOWN_SHARE_STATS = ("played_share", "trained_share", "staleness", "age_s")
MAX_SHOWN_TASKS = 8
"""Tasks on the screen, the most played ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleStatus:
    """One role's answer, or why there is none."""

    name: str
    pid: int
    address: str
    metrics_address: str
    state: str = "unreachable"
    detail: str = ""
    run_id: str = ""
    uptime_s: float = 0.0
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """All roles of a run, its newest numbers, and what holds it up."""

    run_dir: str
    roles: list[RoleStatus]
    metrics: Mapping[str, Any]
    """The last line of `metrics.jsonl`; empty before the first."""
    bottleneck: Bottleneck | None
    """The bottleneck; None while it is unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = self.bottleneck
        return asdict(self) | {"bottleneck": asdict(found) | {"sentence": found.sentence} if found else {}}


def read_status(directory: Path) -> RunStatus:
    """Asks every role of a run, as its operator.

    Raises:
        ConfigError: If there is no run in the directory, or the operator's certificate or token cannot be read.
    """
    if not (directory / RUN_FILE).exists():
        raise ConfigError(f"there is no run in {directory}")
    credentials = read_credentials(read_run(directory).config.services.security, OPERATOR)
    cards = [json.loads(path.read_text()) for path in sorted((directory / ROLES_DIRECTORY).glob("*.json"))]
    with ThreadPoolExecutor(max(1, len(cards))) as pool:
        roles = list(pool.map(partial(ask, credentials=credentials), cards))
    rows = read_rows(directory / "metrics.jsonl")
    return RunStatus(
        run_dir=str(directory),
        roles=roles,
        metrics=rows[-1] if rows else {},
        bottleneck=find_in(role.stats for role in roles),
    )


def ask(card: Mapping[str, Any], credentials: Credentials) -> RoleStatus:
    """Asks the role that left this card."""
    known = RoleStatus(**{key: card[key] for key in ("name", "pid", "address", "metrics_address")})
    if not known.address:
        return _absent(known, "starting", "no port is open yet")
    try:
        peer = role_word(status_service_pb2.Role.Value(card["role"]))
        with connect(known.address, peer, credentials) as channel, translated():
            stub = status_service_pb2_grpc.StatusServiceStub(channel)
            answer = stub.Describe(status_service_pb2.DescribeRequest(), timeout=TIMEOUT_S)
    except (UnavailableError, DeadlineError):
        return _absent(known, "unreachable")
    except FleetError as error:
        return replace(known, state="unreachable", detail=str(error))
    return replace(
        known,
        state=state_word(answer.state),
        detail=answer.detail,
        run_id=answer.run_id,
        uptime_s=in_seconds(answer.uptime),
        stats=dict(answer.stats),
    )


def _absent(known: RoleStatus, state: str, detail: str = "") -> RoleStatus:
    """A role that does not answer: in that state, unless it was one of this machine that died and left its card."""
    is_here = (known.address or known.metrics_address).rpartition(":")[0] in LOOPBACK_HOSTS
    if is_here and not Path(f"/proc/{known.pid}").exists():
        state, detail = "gone", f"process {known.pid} has ended"
    return replace(known, state=state, detail=detail)


def render(status: RunStatus) -> RenderableType:
    """The status as one screen: who is up, the roles' own numbers, the run's, and what holds it up."""
    if not status.roles:
        return Group(Text(status.run_dir, style="bold"), Text("no role is up", style="yellow"), *_summary(status))
    roles = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("role", "state", "up", "pid", "address", "metrics"):
        roles.add_column(column, overflow="fold", no_wrap=column == "role")
    stats = Table.grid(padding=(0, 2))
    for role in status.roles:
        roles.add_row(*_cells(role))
        plain = {name: value for name, value in role.stats.items() if "." not in name}
        if plain:
            stats.add_row(Text(role.name, style="dim"), Text("  ".join(_render_stats(plain))))
    parts = (roles, Text(), stats, Text(), *_summary(status), *_bottleneck(status.bottleneck))
    return Group(Text(status.run_dir, style="bold"), *parts)


def _summary(status: RunStatus) -> list[Text]:
    metrics = status.metrics
    return [
        Text(line)
        for line in (_line(metrics, SHOWN_STATS), *_failures(metrics), *_tasks(metrics), *_shares(metrics))
        if line
    ]


def _bottleneck(found: Bottleneck | None) -> Iterator[RenderableType]:
    """The shares of both loops' time, and the bottleneck."""
    if found is None:
        return
    times = Table.grid(padding=(0, 2))
    for title, part in (("slots", found.slots), ("learner", found.loop)):
        times.add_row(Text(title, style="dim"), *(Text(f"{name} {share:.0%}") for name, share in part.items()))
    yield from (Text(), times, Text(found.sentence, style="bold"))


def _failures(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The number of failed episodes, their kinds, and the effect on the mean return."""
    if metrics.get("episode_failures"):
        kinds = "  ".join(_render_stats(metrics.get("episode_failures_by_kind", {})))
        shown = _line(metrics, ("episode_failures", "episode_cut_share", "episode_return_uncut_mean"))
        yield f"{shown}  by kind: {kinds or 'unknown'}"


def _tasks(metrics: Mapping[str, Any]) -> Iterator[str]:
    tasks: Mapping[str, Mapping[str, Any]] = metrics.get("tasks", {})
    most_played = sorted(tasks, key=lambda name: tasks[name]["episodes"], reverse=True)
    for name in most_played[:MAX_SHOWN_TASKS]:
        yield f"task {name}: {_line(tasks[name], SHOWN_TASK_STATS)}"
    if len(tasks) > MAX_SHOWN_TASKS:
        yield f"and {len(tasks) - MAX_SHOWN_TASKS} more tasks, in metrics.jsonl"


def _shares(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Each task's share of the steps, where there are several tasks; what starves; and the streams that do."""
    shares: Mapping[str, Mapping[str, Any]] = metrics.get("step_shares", {})
    for task, share in list(shares.items())[:MAX_SHOWN_TASKS] if len(shares) > 1 else ():
        yield f"steps of {task or '(no task)'}  {_line(share, SHOWN_SHARE_STATS)}"
    yield from metrics.get("step_warnings", {}).values()
    for stream in metrics.get("starved_streams", ()):
        why = "  ".join(_render_stats(stream["dropped_steps"]))
        trained = f"{stream['trained_steps']:,} of {stream['played_steps']:,} steps trained on"
        yield f"stream {stream['stream']}  {trained}  {why}"


def _line(numbers: Mapping[str, Any], names: Sequence[str]) -> str:
    return "  ".join(_render_stats({name: numbers[name] for name in names if numbers.get(name) is not None}))


def _cells(role: RoleStatus) -> list[Text]:
    state = Text(role.state, style=STYLES.get(role.state, "red"))
    if role.detail:
        state.append(f": {role.detail}", style="dim")
    up = str(timedelta(seconds=round(role.uptime_s)))
    return [Text(role.name), state, *(Text(text) for text in (up, str(role.pid), role.address, role.metrics_address))]


def _render_stats(stats: Mapping[str, float]) -> list[str]:
    return [f"{name} {_plain(value)}" for name, value in stats.items() if value]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
