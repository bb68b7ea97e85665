"""The HTTP endpoint beside a role's gRPC port: /metrics, /healthz and /readyz.

On a port and threads of its own, so that a full gRPC pool can neither hide the metrics nor fail the probes.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from minefleet.errors import ConfigError
from minefleet.v1 import status_service_pb2
from minefleet_runtime.context import StatusBoard

TEXT = "text/plain; charset=utf-8"
Answer = tuple[int, str, bytes]


class ProbeServer(ThreadingHTTPServer):
    """Answers from a board and a registry."""

    daemon_threads = True

    def __init__(self, host: str, port: int, board: StatusBoard, registry: CollectorRegistry) -> None:
        self.board = board
        self.registry = registry
        super().__init__((host, port), ProbeHandler)

    def answer(self, path: str, accept: str) -> Answer:
        """Status, content type and body for a path."""
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return 200, content_type, encode(self.registry)
        if path == "/healthz":
            return 200, TEXT, b"alive\n"
        if path == "/readyz":
            return self._readiness()
        return 404, TEXT, b"there are /metrics, /healthz and /readyz\n"

    def _readiness(self) -> Answer:
        report = self.board.report()
        state = status_service_pb2.State.Name(report.state).removeprefix("STATE_").lower()
        line = f"{state}: {report.detail}\n" if report.detail else f"{state}\n"
        return (200 if report.is_ready else 503), TEXT, line.encode()


class ProbeHandler(BaseHTTPRequestHandler):
    """One request."""

    timeout = 2.0
    """Seconds after which a silent connection is closed: each holds a thread."""
    server: ProbeServer

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
def probing(address: str, board: StatusBoard, registry: CollectorRegistry, key: str) -> Iterator[str]:
    """Serves the endpoint in the background; yields the bound `host:port`.

    Raises:
        ConfigError: If the address cannot be bound; names `key`.
    """
    host, _, port = address.rpartition(":")
    try:
        server = ProbeServer(host, int(port), board, registry)
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
