"""`minefleet watch`: serves the page that shows runs, until Ctrl-C."""

import argparse
import os
import secrets
import socket
import webbrowser

from minefleet.config.field_validators import host_port
from minefleet.core.errors import EXIT_SIGNAL, ConfigError
from minefleet.monitoring.status import LOOPBACK_HOSTS
from minefleet.runs.default_run_directory import RUNS

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Without one a browser is a program of the terminal, which waits until it is closed."""


def run(arguments: argparse.Namespace) -> int:
    """Serves the page."""
    try:
        import uvicorn

        from minefleet.watch.server import make_app
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'minefleet[watch]'") from error
    for directory in arguments.runs:
        if not directory.is_dir():
            raise ConfigError(f"there is no directory {directory}")
    host, port = host_port("--listen", arguments.listen)
    token = arguments.token or ("" if host in LOOPBACK_HOSTS else secrets.token_urlsafe(16))
    app = make_app(arguments.runs or [RUNS], host=host, token=token)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", server_header=False))
    listening = _listen(host.strip("[]"), port)
    address = f"http://{host}:{listening.getsockname()[1]}/{f'?token={token}' if token else ''}"
    print(f"watch at {address}", flush=True)
    if not arguments.no_browser and any(map(os.environ.get, SCREENS)):
        webbrowser.open(address)
    server.run(sockets=[listening])
    return EXIT_SIGNAL  # Only a signal ends it; a background job of a shell gets no KeyboardInterrupt.


def _listen(host: str, port: int) -> socket.socket:
    """A socket at which callers are waited for.

    Raises:
        ConfigError: If the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; --listen {host}:0 takes a free port"
        ) from error
