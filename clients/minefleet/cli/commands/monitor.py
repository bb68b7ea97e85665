"""`minefleet monitor`: a Prometheus for one run on this machine, until Ctrl-C."""

import argparse
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from minefleet.cli.settings import newest_run
from minefleet.core.errors import EXIT_FAILED, ConfigError
from minefleet.core.parent_death import tied
from minefleet.monitoring.scrape_targets import write_scrape_config, write_targets
from minefleet.runs.run import read_run

INTERVAL_S = 5
"""Between two scrapes, and two looks for roles that have come or gone."""
LINES = 5
"""Of what Prometheus said before it ended, so many are shown."""
INSTALL = """\
there is no program `prometheus`: install it (on Debian and Ubuntu: apt-get install prometheus), then try again.
One of your own needs these targets, kept current while this runs: file_sd_configs: [{{files: [{targets}]}}]"""
GRAFANA = "in Grafana: a data source with the uid `prometheus` at this address, and the dashboards of deploy/grafana"


def run(arguments: argparse.Namespace) -> int:
    """Starts Prometheus and keeps its targets current."""
    directory = read_run(arguments.run_dir or newest_run()).directory
    folder = directory / "monitor"
    folder.mkdir(exist_ok=True)
    targets, settings = folder / "targets.json", folder / "prometheus.yaml"
    names = write_targets(directory, targets)
    write_scrape_config(settings, targets, INTERVAL_S)
    program = shutil.which("prometheus")
    if program is None:
        raise ConfigError(INSTALL.format(targets=targets))
    command = [
        *(program, f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={arguments.listen}", "--log.level=warn"),
    ]
    print(
        f"Prometheus at http://{arguments.listen} scrapes {', '.join(names) or 'no role: none is up'}\n{GRAFANA}",
        flush=True,
    )
    with (folder / "prometheus.log").open("w+") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | tied())
        try:
            return _keep(child, directory, targets, names, Path(log.name))
        finally:
            child.terminate()
            child.wait()


def _keep(child: "subprocess.Popen[bytes]", directory: Path, targets: Path, names: list[str], log: Path) -> int:
    """Keeps the targets current until Ctrl-C, or until Prometheus ends."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(INTERVAL_S)
            said = "".join(f"\n    {line}" for line in log.read_text().splitlines()[-LINES:])
            print(f"minefleet: Prometheus has ended with {child.returncode}:{said}", file=sys.stderr)
            return EXIT_FAILED
        if (found := write_targets(directory, targets)) != names:
            names = found
            print(_scraping(names), flush=True)


def _scraping(names: list[str]) -> str:
    return f"scrapes {', '.join(names) or 'no role: none is up'}"
