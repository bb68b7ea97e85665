"""Writes the dashboards into `dashboards/`; with `--check`, fails when what is committed is not current.

`python -m deploy.grafana.generate`, from the repository's root.
"""

import json
import sys
from pathlib import Path

from deploy.grafana import actors, flow, services, training
from deploy.grafana.panels import build
from grafana_foundation_sdk.cog.encoder import JSONEncoder

DASHBOARDS = Path(__file__).parent / "dashboards"
MODULES = (training, flow, actors, services)


def generate() -> dict[str, str]:
    """The text of every dashboard, by the name of its file."""
    pages = [module.page() for module in MODULES]
    return {f"{page.uid}.json": json.dumps(build(page), cls=JSONEncoder, indent=2) + "\n" for page in pages}


def main() -> None:
    """Writes them, or compares them."""
    fresh = generate()
    if sys.argv[1:] != ["--check"]:
        for name, text in fresh.items():
            (DASHBOARDS / name).write_text(text)
        return
    committed = {path.name: path.read_text() for path in DASHBOARDS.iterdir()}
    stale = sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))
    if stale:
        sys.exit(f"deploy/grafana/dashboards is not current, run `make dashboards`: {', '.join(stale)}")


if __name__ == "__main__":
    main()
