"""Terminal output of `minefleet parameters`: one function per action, from its report."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minefleet.cli.output.readable_text import size

Report = Mapping[str, Any]


def listed(report: Report) -> RenderableType:
    """The versions, oldest first, and what parameters says of itself."""
    how = "  asked parameters" if report["online"] else "  read its store"
    head = Text.assemble((report["run_dir"], "bold"), (how, "dim"))
    if not report["versions"]:
        return Group(head, Text("no version has been published yet", style="yellow"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("version", "iteration", "epoch", "published", "tensors", "size", ""):
        table.add_column(column, justify="left" if column in ("published", "") else "right", no_wrap=True)
    newest = report["versions"][-1]["version"]
    for one in report["versions"]:
        marks = (("newest", one["version"] == newest), ("pinned", one["pinned"]))
        # Without commas: a version is typed again after `pin`.
        numbers = (str(one[name]) for name in ("version", "iteration", "epoch"))
        facts = (_time(one["publish_time"]), f"{one['tensors']:,}", size(one["size_bytes"]))
        table.add_row(*numbers, *facts, ", ".join(mark for mark, applies in marks if applies))
    return Group(head, table, Text("  ".join(_stats(report)), style="dim"))


def pinned(report: Report) -> RenderableType:
    """Shows the pinned versions."""
    return Text(f"version {report['version']} is kept until it is unpinned")


def unpinned(report: Report) -> RenderableType:
    """Shows the versions that are no longer pinned, or gone."""
    fate = "expires with its age" if report["tensors"] else "is not there any more"
    return Text(f"version {report['version']} is not pinned and {fate}")


def exported(report: Report) -> RenderableType:
    """Shows the exported files."""
    what = f"version {report['version']} of iteration {report['iteration']}"
    return Text(f"{what}: {report['tensors']:,} tensors, {size(report['model_bytes'])} in {report['directory']}")


RENDER: dict[str, Callable[[Report], RenderableType]] = {
    "list": listed,
    "pin": pinned,
    "unpin": unpinned,
    "export": exported,
}


def _time(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"


def _stats(report: Report) -> list[str]:
    stats = {name: f"{value:.0f}" for name, value in report.get("stats", {}).items()}
    stats["on disk"] = size(report["disk_bytes"])
    return [f"{name.replace('_', ' ')} {value}" for name, value in stats.items()]
