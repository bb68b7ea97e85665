"""Stores that fsspec reaches, as processes that tests kill: S3 by moto's server, FTP by pyftpdlib; and a folder."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
from tests.role_process import TIMEOUT_S, free_address, wait_for

KINDS = ("s3", "ftp", "file")
BUCKET = "bucket"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # Otherwise botocore asks an address of Amazon's for credentials.
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_CONFIG_FILE": "/dev/null",
}


class StoreServer:
    """A store, which may be killed and started again. S3's is empty then; the others keep what was written."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind = kind
        self.place = place
        self.address = free_address()
        self.environment = ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://{self.address}"}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        """The place of a run's snapshots."""
        names = {"s3": f"s3://{BUCKET}/run", "ftp": f"ftp://{self.address}/run", "file": f"file://{self.place}/run"}
        return names[self.kind]

    def start(self, **environment: str) -> None:
        """Starts the server and waits until it answers; then there is a bucket."""
        self.place.mkdir(exist_ok=True)
        host, _, port = self.address.rpartition(":")
        commands = {
            "s3": ["moto.server", "-H", host, "-p", port],
            "ftp": ["pyftpdlib", "-i", host, "-p", port, "-w", "-d", str(self.place)],
        }
        if self.kind in commands:
            with (self.place.parent / "store.log").open("ab") as log:
                command = [sys.executable, "-W", "ignore", "-m", *commands[self.kind]]
                self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
            wait_for(self._answers)
        if self.kind == "s3":
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)

    def kill(self) -> None:
        """Kills the server at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
            self._process = None

    def names(self) -> list[str]:
        """The objects that are there."""
        system, root = fsspec.core.url_to_fs(self.target, use_listings_cache=False, skip_instance_cache=True)
        with suppress(FileNotFoundError):
            return sorted(Path(name).name for name in system.ls(root, detail=False))
        return []

    def change(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Damages an object."""
        system, root = fsspec.core.url_to_fs(self.target, use_listings_cache=False, skip_instance_cache=True)
        system.pipe_file(f"{root}/{name}", change(system.cat_file(f"{root}/{name}")))

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        assert self._process is not None and self._process.poll() is None
        with suppress(OSError), socket.create_connection((host, int(port))):
            return True
        return False


@contextmanager
def object_store(kind: str, place: Path) -> Iterator[StoreServer]:
    """A store that answers, with this process's environment as its clients need it."""
    import pytest

    server = StoreServer(kind, place)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # Those have the address of another server.
        server.start()
        try:
            yield server
        finally:
            server.kill()
