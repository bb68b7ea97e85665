"""Generates `clients/minefleet/v1` from the protos; with `--check`, fails when what is committed is not current."""

import filecmp
import os
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent
PACKAGE = Path("minefleet/v1")
COMMITTED = PROTOS.parent / "clients" / PACKAGE


def generate(out: Path) -> None:
    """Writes the message, stub and type files for every proto below `out`."""
    files = sorted(str(path) for path in (PROTOS / PACKAGE).glob("*.proto"))
    services = [path for path in files if path.endswith("_service.proto")]
    includes = [f"-I{PROTOS}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    run(*includes, f"--python_out={out}", f"--mypy_out=quiet:{out}", *files)
    run(*includes, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}", *services)
    (out / PACKAGE / "__init__.py").write_text('"""Wire types, generated from `protos/`. Never edited."""\n')


def run(*arguments: str) -> None:
    """Calls protoc and ends the program when it fails."""
    if protoc.main(["protoc", *arguments]) != 0:
        sys.exit(1)


def differing(fresh: Path) -> list[str]:
    """Names the files that differ between `fresh` and what is committed, or exist on one side only."""
    names = {path.name for path in fresh.glob("*.py*")} | {path.name for path in COMMITTED.glob("*.py*")}
    _, mismatch, missing = filecmp.cmpfiles(fresh, COMMITTED, sorted(names), shallow=False)
    return sorted(mismatch + missing)


def main() -> None:
    """Generates, or compares with `--check`."""
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # protoc looks for its mypy plugins there.
    )
    if sys.argv[1:] != ["--check"]:
        generate(COMMITTED.parent.parent)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = differing(Path(scratch) / PACKAGE)
    if stale:
        sys.exit(f"clients/minefleet/v1 is not current, run `make protos`: {', '.join(stale)}")


if __name__ == "__main__":
    main()
