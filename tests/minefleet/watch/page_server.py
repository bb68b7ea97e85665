"""The page's server on a real socket."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn

from minefleet.config import EnvConfig, FleetConfig
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import Run
from minefleet.watch.server import make_app


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body, parse_constant=pytest.fail)


class Browser:
    """Sends requests as they are written, to a server that listens."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, host: str = "127.0.0.1", method: str = "GET", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": host, **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def serving_page(places: list[Path], token: str = "", host: str = "127.0.0.1") -> Iterator[Browser]:
    server = uvicorn.Server(uvicorn.Config(make_app(places, host=host, token=token), log_level="error"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Browser(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def make_run(directory: Path, rows: int = 0) -> Run:
    directory.mkdir(parents=True)
    run = Run(
        directory=directory,
        config=FleetConfig(env=EnvConfig(id="CartPole-v1")),
        schema=Schema(obs={}, action={}),
        architecture="abc",
    )
    run.write()
    if rows:
        run.metrics.write_text("".join(json.dumps(row_of(number)) + "\n" for number in range(1, rows + 1)))
    return run


def row_of(number: int, **more: Any) -> dict[str, Any]:
    place = {"iteration": number, "env_steps": 100 * number, "wall_s": number / 2}
    return place | {"episode_return_mean": number / 10, "loop_share": {"training": 0.5}} | more
