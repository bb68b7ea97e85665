"""Reports of benchmarks: a table of rounds, and one JSON line per case."""

import json
from collections.abc import Mapping, Sequence
from statistics import median

Round = Mapping[str, float]
"""Measurements, by column."""


def table(title: str, rounds: Sequence[Round], digits: int = 3) -> str:
    """Rounds as rows, then the median, the lowest and the highest of each column."""
    rows = {f"round {number}": list(each.values()) for number, each in enumerate(rounds, 1)}
    columns = list(zip(*rows.values(), strict=True))
    rows |= {"median": [median(column) for column in columns]}
    rows |= {"lowest": [min(column) for column in columns], "highest": [max(column) for column in columns]}
    cells = [[name, *(f"{value:.{digits}f}" for value in values)] for name, values in rows.items()]
    return aligned([[title, *rounds[0]], *cells])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(lines)


def medians(rounds: Sequence[Round]) -> dict[str, float]:
    """The median of each column."""
    return {column: median(each[column] for each in rounds) for column in rounds[0]}


def line(
    benchmark: str, case: str, unit: str, ours: float, *, peer: float | None = None, limit: float | None = None
) -> str:
    """The JSON line of a case whose larger figures are better."""
    return json.dumps(
        {
            "benchmark": benchmark,
            "case": case,
            "unit": unit,
            "ours": ours,
            "peer": peer,
            "limit": limit,
            "ratio_peer": ours / peer if peer else None,
            "ratio_limit": ours / limit if limit else None,
        }
    )
