"""`minefleet certs`: certificates by which the roles of a fleet know each other."""

import argparse
import json

from minefleet.core.errors import ConfigError
from minefleet.rpc import certificates
from minefleet.rpc.credentials import ROLES

MAX_DAYS = 3650


def run(arguments: argparse.Namespace) -> int:
    """Makes them, prints one JSON object, and returns the exit code."""
    if not 1 <= arguments.days <= MAX_DAYS:
        raise ConfigError(f"--days must be from 1 to {MAX_DAYS}, got {arguments.days}")
    if arguments.action == "init":
        folders = certificates.init(arguments.directory, days=arguments.days, keep_authority=arguments.keep_authority)
    elif arguments.role not in ROLES:
        raise ConfigError(f"ROLE must be one of {', '.join(ROLES)}, got {arguments.role!r}")
    else:
        folders = [certificates.issue(arguments.directory, arguments.role, out=arguments.out, days=arguments.days)]
    print(json.dumps({"authority": str(arguments.directory), "folders": [str(folder) for folder in folders]}))
    return 0
