"""Terminal output of `minefleet replay`: one function per action, from its report."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minefleet.cli.output.readable_text import size

BUCKETS = ("live", "leased", "trained", "expired", "evicted", "corrupt")

Report = Mapping[str, Any]


def stats(report: Report) -> RenderableType:
    """The ledger and the statistics of each process."""
    return Group(*(part for shard in report["shards"] for part in (_head(shard), _ledger(shard), _stats(shard))))


def why_dropped(report: Report) -> RenderableType:
    """The departures, the latest first."""
    departures = [departure for shard in report["shards"] for departure in shard["departures"]]
    if not departures:
        return Text("nothing has left within the window that replay remembers", style="yellow")
    departures.sort(key=lambda departure: str(departure["left_at"]), reverse=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("left", "stream", "chunk", "sequences", "reason", "uses", "oldest version"):
        table.add_column(column, overflow="fold", no_wrap=column == "left")
    for one in departures:
        cells = (one["left_at"], one["stream"], one["chunk"], _ranges(one["sequences"]), one["reason"])
        table.add_row(*map(str, (*cells, one["uses"], one["oldest_version"])))
    return table


def fsck(report: Report) -> RenderableType:
    """Sound, or what is wrong."""
    return Group(*(line for shard in report["shards"] for line in (_head(shard), *_faults(shard), *_unnamed(shard))))


def export(report: Report) -> RenderableType:
    """Shows the exported files."""
    return Text(f"{report['fragments']:,} fragments of {report['steps']:,} steps in {report['directory']}")


RENDER: dict[str, Callable[[Report], RenderableType]] = {
    "stats": stats,
    "why-dropped": why_dropped,
    "fsck": fsck,
    "export": export,
}


def _head(shard: Report) -> Text:
    how = {True: "  asked replay", False: "  read its store", None: ""}[shard.get("online")]
    return Text.assemble((shard["name"], "bold"), f"  {shard['store']}", (how, "dim"))


def _ledger(shard: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("appended", *BUCKETS):
        table.add_column(column, justify="right")
    table.add_column("")
    verdict = Text("balanced", style="green") if shard["balanced"] else Text("not balanced: run fsck", style="red")
    table.add_row(*(f"{shard[f'{name}_fragments']:,}" for name in ("appended", *BUCKETS)), verdict)
    return table


def _stats(shard: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for name, value in _facts(shard):
        table.add_row(name, value)
    return table


def _facts(shard: Report) -> Iterator[tuple[str, str]]:
    yield "chunks", f"{shard['held_chunks']:,}, {shard['ready_chunks']:,} ready, {shard['unused_chunks']:,} never used"
    yield "held", size(shard["held_payload_bytes"])
    if shard["stored_bytes"]:
        since = "since replay started" if shard["online"] else "of what is held"
        ratio = shard["stored_raw_bytes"] / shard["stored_bytes"]
        yield "packed", f"{ratio:.1f}×, {size(shard['stored_raw_bytes'])} to {size(shard['stored_bytes'])}, {since}"
    yield "on disk", size(shard["disk_bytes"])
    yield "streams", f"{shard['known_streams']:,} known"
    yield "open leases", f"{shard['open_leases']:,}"
    yield "versions", f"newest {shard['newest_version']:,}, oldest held {shard['oldest_held_version']:,}"
    yield "epoch", f"{shard['epoch']:,}"
    yield "env steps", f"{shard['env_steps']:,}, {shard['env_failures']:,} failures"
    for name in ("staleness", "uses"):
        if shard.get(name):
            yield name, ", ".join(f"{value}: {count:,} chunks" for value, count in shard[name].items())


def _faults(shard: Report) -> Iterator[Text]:
    if not shard["faults"]:
        yield Text("sound", style="green")
    for fault in shard["faults"]:
        yield Text(fault, style="red")


def _unnamed(shard: Report) -> Iterator[Text]:
    files = shard["unnamed_payload_files"]
    if files:
        yield Text(
            f"{len(files)} files of payloads hold nothing and go when replay runs: {', '.join(files)}", style="dim"
        )


def _ranges(sequences: list[int]) -> str:
    """Numbers in short: 3, 4-7."""
    spans: list[list[int]] = []
    for number in sorted(sequences):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
