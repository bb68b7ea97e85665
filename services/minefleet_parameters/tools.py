"""Works on the store of a stopped run: `python -m minefleet_parameters.tools TOOL --run-dir DIR`. Prints JSON.

The store is opened as parameters opens it: what a crash has left is removed, and no other process serves it meanwhile.
Exit codes: 0 done; 1 failed; 2 the command line or the run cannot work.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from minefleet.core.errors import EXIT_CONFIG, EXIT_FAILED, ConfigError, FleetError
from minefleet.rpc.weights.manifest import from_wire
from minefleet.rpc.weights.version_info import read_info
from minefleet.runs.exported_version import export
from minefleet.runs.run_yaml import Run, read_run
from minefleet.v1 import weights_pb2
from minefleet_parameters.role import versions_to_keep
from minefleet_parameters.store import ParameterStore, open_store
from minefleet_parameters.store_identity import IDENTITY_FILE

Report = dict[str, Any]
Tool = Callable[[Run, ParameterStore, argparse.Namespace], Report]


def main(argv: Sequence[str]) -> int:
    """Runs the tool that the command line names, and returns its exit code."""
    arguments = parse(argv)
    try:
        report = _run(read_run(arguments.run_dir), arguments)
    except FleetError as error:
        print(f"minefleet: {error}", file=sys.stderr)  # noqa: T201  # This module is a command.
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED
    print(json.dumps(report))  # noqa: T201
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m minefleet_parameters.tools", description="Works on the store of a stopped run."
    )
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--version", type=int, default=0, metavar="N", help="which version (default: the newest)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where an export goes")
    return parser.parse_args(argv)


def _run(run: Run, arguments: argparse.Namespace) -> Report:
    if not (run.parameters / IDENTITY_FILE).exists():
        raise ConfigError(f"there is no store of parameters in {run.parameters}")
    with open_store(run.parameters, keep=versions_to_keep(run.config)) as store:
        head = {"run_dir": str(run.directory), "online": False}
        return head | TOOLS[arguments.tool](run, store, arguments)


def _list(run: Run, store: ParameterStore, arguments: argparse.Namespace) -> Report:
    return {"versions": [_described(store.info(number)) for number in store.kept]}


def _pin(run: Run, store: ParameterStore, arguments: argparse.Namespace) -> Report:
    return _described(store.pin(arguments.version))


def _unpin(run: Run, store: ParameterStore, arguments: argparse.Namespace) -> Report:
    return _described(store.unpin(arguments.version))


def _export(run: Run, store: ParameterStore, arguments: argparse.Namespace) -> Report:
    version = store.version(arguments.version)

    def array_of(entry: weights_pb2.TensorEntry) -> NDArray[Any]:
        return from_wire(entry, store.read_whole(version.version, entry))

    info = read_info(store.info(version.version))
    return export(arguments.out, run, info, version.manifest.tensors, array_of)


def _described(info: weights_pb2.VersionInfo) -> Report:
    return read_info(info).to_dict()


TOOLS: dict[str, Tool] = {"list": _list, "pin": _pin, "unpin": _unpin, "export": _export}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
