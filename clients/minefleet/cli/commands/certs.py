"""`minefleet certs`: certificates by which the roles of a fleet know each other."""

import argparse
import json
from pathlib import Path

from minefleet.core.errors import ConfigError
from minefleet.rpc import certificates
from minefleet.rpc.credentials import ROLES

MAX_DAYS = 3650


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    what = "init: make an authority, and a certificate for each role; issue: make a new certificate for a role"
    parser.add_argument("action", choices=("init", "issue"), help=what)
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the authority lies")
    parser.add_argument(
        "role", nargs="?", default="", metavar="ROLE", help="for `issue`: actor, learner, operator, ..."
    )
    parser.add_argument(
        "--days",
        type=int,
        default=certificates.DAYS,
        help=f"how long certificates are valid (default: {certificates.DAYS})",
    )
    keep = "for `init`: take the authority that is there, and make new certificates of it"
    parser.add_argument("--keep-authority", action="store_true", help=keep)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where `issue` writes (default: DIR/ROLE)")


def run(arguments: argparse.Namespace) -> int:
    """Makes them, prints one JSON object, and returns the exit code."""
    if not 1 <= arguments.days <= MAX_DAYS:
        raise ConfigError(f"--days must be from 1 to {MAX_DAYS}, got {arguments.days}")
    if arguments.action == "init":
        if arguments.role or arguments.out:
            raise ConfigError("init makes the certificates of all roles in DIR; give neither ROLE nor --out")
        folders = certificates.init(arguments.directory, days=arguments.days, keep_authority=arguments.keep_authority)
    elif arguments.role not in ROLES:
        raise ConfigError(f"ROLE must be one of {', '.join(ROLES)}, got {arguments.role!r}")
    else:
        folders = [certificates.issue(arguments.directory, arguments.role, out=arguments.out, days=arguments.days)]
    print(json.dumps({"authority": str(arguments.directory), "folders": [str(folder) for folder in folders]}))
    return 0
