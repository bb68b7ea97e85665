"""`minefleet monitor`: a Prometheus for one run on this machine, and a Grafana, until Ctrl-C."""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from minefleet.core.errors import EXIT_FAILED, ConfigError
from minefleet.core.termination_signal_set import stop_signals
from minefleet.launch.role_process import quoted
from minefleet.monitoring.prometheus_grafana_config import (
    DEPLOY,
    MONITOR_DIRECTORY,
    MonitorProgram,
    grafana,
    prometheus,
)
from minefleet.monitoring.scrape_targets import TARGETS_FILE, write_targets
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.run_yaml import read_run

POLL_INTERVAL_S = 0.5
LAST_LINES = 5
"""Of what a program said before it ended, so many are shown."""
NO_PROMETHEUS = """\
there is no program `prometheus`: install it (on Debian and Ubuntu: apt-get install prometheus), then try again.
One of your own finds the roles by file_sd_configs: [{{files: [{targets}]}}]"""
NO_GRAFANA = f"""\
No Grafana is started: that needs {DEPLOY} and the program `grafana` (https://grafana.com/grafana/download).
In one of your own: a data source with the uid `prometheus` at this address, and the dashboards of deploy/grafana."""


def run(arguments: argparse.Namespace) -> int:
    """Starts the programs, and keeps the targets current until Ctrl-C or until one of them ends."""
    for signum in stop_signals():
        signal.signal(signum, signal.default_int_handler)  # All end as Ctrl-C does, so that no program is left behind.
    directory = read_run(arguments.run_dir or newest_run()).directory
    names = write_targets(directory)
    scraper = prometheus(directory, arguments.listen)
    if scraper is None:
        raise ConfigError(NO_PROMETHEUS.format(targets=directory / TARGETS_FILE))
    shower = grafana(directory, arguments.grafana_listen, arguments.listen)
    print(f"Prometheus at http://{arguments.listen} {_scraping(names)}", flush=True)
    print(NO_GRAFANA if shower is None else f"Grafana at http://{arguments.grafana_listen}", flush=True)
    with ExitStack() as started:
        children = {
            program.name: _start(program, directory / MONITOR_DIRECTORY, started)
            for program in (scraper, shower)
            if program is not None
        }
        while True:
            for name, child in children.items():
                if child.poll() is not None:
                    lines = (directory / MONITOR_DIRECTORY / f"{name}.log").read_text(errors="replace").splitlines()
                    said = quoted("\n".join(lines[-LAST_LINES:]))
                    print(f"minefleet: {name} has ended with {child.returncode}:{said}", file=sys.stderr)
                    return EXIT_FAILED
            if (found := write_targets(directory)) != names:
                names = found
                print(_scraping(names), flush=True)
            time.sleep(POLL_INTERVAL_S)


def _start(program: MonitorProgram, folder: Path, started: ExitStack) -> "subprocess.Popen[bytes]":
    """Starts a program, which ends with `started`."""
    with (folder / f"{program.name}.log").open("w") as log:
        variables = os.environ | program.variables
        child = started.enter_context(subprocess.Popen(program.command, stdout=log, stderr=log, env=variables))
    started.callback(child.terminate)
    return child


def _scraping(names: list[str]) -> str:
    return f"scrapes {', '.join(names) or 'no role: none is up'}"
