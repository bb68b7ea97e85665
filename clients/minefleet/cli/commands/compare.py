"""`minefleet compare`: the results of runs, those that differ by their seed only together."""

import argparse
import json
import sys
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from minefleet.cli.output.readable_text import described
from minefleet.core.errors import ConfigError
from minefleet.monitoring.run_comparison import FEWEST, compare


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, or one line of JSON where nobody looks."""
    try:
        results = compare(arguments.runs, arguments.objective, arguments.env_steps)
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'minefleet[compare]'") from error
    if arguments.json or not sys.stdout.isatty():
        print(json.dumps([asdict(result) for result in results], default=str), flush=True)
        return 0
    table = Table("configuration", "runs", "median, 95 %", "interquartile mean, 95 %", box=box.SIMPLE)
    for result in results:
        table.add_row(
            described(result.differs) or "all the same",
            str(len(result.runs)),
            _with_interval(result.median, result.median_interval),
            _with_interval(result.iqm, result.iqm_interval),
        )
    Console().print(table)
    print(f"{arguments.objective} at {results[0].env_steps:,} environment steps; an interval needs {FEWEST} runs.")
    return 0


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return f"{value:.4g}" + (f" ({interval[0]:.4g} to {interval[1]:.4g})" if interval else "")
