"""The HTTP endpoint beside a role's gRPC port: /metrics, /healthz and /readyz.

On a port and threads of its own, so that a full gRPC pool can neither hide the metrics nor fail the probes.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from minefleet.core.errors import ConfigError
from minefleet.rpc.enum_names import state_word
from minefleet_runtime.port_release_wait import await_free_port
from minefleet_runtime.role_status import StatusTracker

logger = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
MAX_CONNECTIONS = 64
"""At once; each holds a thread."""
MAX_REQUEST_S = 5.0
"""A connection's life."""
Answer = tuple[int, str, bytes]


class ProbeServer(ThreadingHTTPServer):
    """Answers from a status and a registry. Connections beyond `MAX_CONNECTIONS`, and those that creep, are closed."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, status: StatusTracker, registry: CollectorRegistry) -> None:
        self.status = status
        self.registry = registry
        self._began: dict[Any, float] = {}
        super().__init__((host, port), ProbeHandler)

    def answer(self, path: str, accept: str) -> Answer:
        """Status, content type and body for a path."""
        if path == "/metrics":
            encode, content_type = _encoder(accept)
            return 200, content_type, encode(self.registry)
        if path == "/healthz":
            return 200, TEXT, b"alive\n"
        if path == "/readyz":
            return self._readiness()
        return 404, TEXT, b"there are /metrics, /healthz and /readyz\n"

    def _readiness(self) -> Answer:
        report = self.status.snapshot()
        state = state_word(report.state)
        line = f"{state}: {report.detail}\n" if report.detail else f"{state}\n"
        return (200 if report.is_ready else 503), TEXT, line.encode()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a thread for one more connection."""
        return len(self._began) < MAX_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread."""
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Ends connections that have lived too long; called twice a second."""
        for connection, began in tuple(self._began.items()):
            if time.monotonic() - began > MAX_REQUEST_S:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs what went wrong with a connection, unless its peer went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("a probe could not be answered")


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The format of the metrics; plain for an unknown version."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        return choose_encoder("")


class ProbeHandler(BaseHTTPRequestHandler):
    """One request."""

    timeout = 2.0
    """Seconds after which a silent connection is closed: each holds a thread."""
    server: ProbeServer
    server_version, sys_version = "minefleet", ""

    def do_GET(self) -> None:
        """Answers and leaves no log line."""
        status, content_type, body = self.server.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Probes come every few seconds; logging them would bury everything else."""


@contextmanager
def probing(address: str, status: StatusTracker, registry: CollectorRegistry, key: str) -> Iterator[str]:
    """Serves the endpoint in the background; yields the bound `host:port`.

    Raises:
        ConfigError: If the address cannot be bound; names `key`.
    """
    host, _, port = address.rpartition(":")
    await_free_port(address)
    try:
        server = ProbeServer(host, int(port), status, registry)
    except OSError as error:
        raise ConfigError(f"{key}: cannot listen on {address}: {error.strerror}. Port 0 takes a free one") from error
    thread = threading.Thread(target=server.serve_forever, name="probes", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
