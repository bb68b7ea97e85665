"""The role as a process that is killed."""

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.role_process import free_address

from minefleet.config import EndpointConfig, FleetConfig, ServicesConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.rpc import channel, handshake
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run
from minefleet.v1 import parameters_service_pb2, parameters_service_pb2_grpc, status_service_pb2

ROUNDS = 4
TENSORS = 8


@pytest.fixture
def run(tmp_path: Path) -> Run:
    leaf = Leaf(kind="box", shape=(2,), dtype="float32")
    run = Run(
        directory=tmp_path,
        config=FleetConfig(services=ServicesConfig(parameters=EndpointConfig(address=free_address()))),
        schema=Schema(obs=leaf, action=leaf),
        architecture="",
    )
    run.write()
    return run


class Role:
    """`python -m minefleet_parameters`, started again when it was killed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.process = self._start()

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "minefleet_parameters", "--run-dir", str(self._run.directory)]
        with (self._run.directory / "log").open("ab") as log:
            return subprocess.Popen(command, stderr=log)


@pytest.fixture
def role(run: Run) -> Iterator[Role]:
    started = Role(run)
    yield started
    started.process.kill()
    started.process.wait()


def connect(run: Run, stopping: threading.Event | None = None, watcher: str = "") -> ParametersClient:
    return ParametersClient(
        run.config.services.parameters.address,
        identity=run.identity(status_service_pb2.ROLE_ACTOR),
        stopping=stopping,
        watcher=watcher,
        patience_s=60.0,
    )


def weights_of(iteration: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Every tensor says which iteration it belongs to."""
    return {
        f"layer.{index}": np.full(PIECE_BYTES // 4 + index, iteration * TENSORS + index, np.float32)
        for index in range(TENSORS)
    }


def test_parameters_role_at_sigterm_exits_0_though_watched_and_keeps_its_state(run: Run, role: Role) -> None:
    stopping = threading.Event()
    with closing(connect(run, stopping)) as client:
        client.open_epoch("run")
        client.publish(weights_of(1), iteration=1)
        with closing(client.watch()) as watch:
            assert next(watch).version == 1
            role.process.send_signal(signal.SIGTERM)
            assert role.process.wait(timeout=60) == 0
        role.kill_and_restart()
        assert client.publish(weights_of(2), iteration=2) == 2
        stopping.set()


def test_parameters_metrics_and_status_count_publishes_fetches_and_watches(run: Run, role: Role) -> None:
    shared, own = np.zeros(1000, np.float32), np.ones(50_000, np.float32)
    with closing(connect(run)) as learner, closing(connect(run, watcher="a")) as actor:
        learner.open_epoch("run")
        learner.publish({"shared": shared, "own": own}, iteration=1)
        watch = actor.watch()
        assert next(watch).version == 1
        actor.runs(actor.fetch()[0].version)
        learner.publish({"shared": shared, "own": own + 1}, iteration=2)
        actor.fetch()
        sizes = {
            "publish_bytes": 404_000,
            "publish_saved_bytes": 4000,
            "fetch_bytes": 404_000,
            "fetch_saved_bytes": 4000,
        }
        expected = {f"{name}_total": size for name, size in sizes.items()} | {
            "publishes_total": 2,
            "publish_seconds_count": 2,
            "fetch_seconds_count": 2,
            "newest_version": 2,
            "kept_versions": 2,
            "stored_bytes": 404_000,
            "watchers": 1,
            "oldest_running_version": 1,
            "epoch": 1,
        }
        assert scraped(run, expected) == expected
        published_at = scraped(run, ["published_timestamp_seconds"])["published_timestamp_seconds"]
        assert published_at == pytest.approx(learner.versions()[-1].publish_time.timestamp(), abs=1e-3)
        with channel.connect(run.config.services.parameters.address) as link:
            figures = dict(handshake.shake_hands(link, None).stats)
        shown = {"newest_version": 2, "kept_versions": 2, "watchers": 1, "oldest_running_version": 1}
        assert figures.pop("processor_seconds") > 0
        assert figures == shown
        watch.close()


def scraped(run: Run, names: Iterable[str]) -> dict[str, float]:
    """Metrics of parameters, as Prometheus sees them."""
    card = json.loads((run.directory / "roles" / "parameters.json").read_text())
    with urllib.request.urlopen(f"http://{card['metrics_address']}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = {sample.name: sample.value for family in families for sample in family.samples}
    return {name: samples[f"minefleet_parameters_{name}"] for name in names}


def test_parameters_role_raises_its_file_limit_and_warns_when_watchers_hold_most_of_it(run: Run) -> None:
    files, watchers = 120, 96
    command = ["prlimit", f"--nofile=50:{files}", sys.executable, "-m", "minefleet_parameters", "--run-dir"]
    options = (*channel.CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    with ExitStack() as stack, (run.directory / "log").open("wb") as log:
        process = subprocess.Popen([*command, str(run.directory)], stderr=log)
        stack.callback(process.wait)
        stack.callback(process.kill)
        learner = stack.enter_context(closing(connect(run)))
        learner.open_epoch("run")
        learner.publish({"layer": np.ones(3, np.float32)}, iteration=1)
        for _ in range(watchers):
            link = stack.enter_context(grpc.insecure_channel(run.config.services.parameters.address, options))
            stub = parameters_service_pb2_grpc.ParametersServiceStub(link)
            watch = stub.Watch(parameters_service_pb2.WatchRequest(), timeout=60)
            stack.callback(watch.cancel)
            next(watch)
        assert f"{watchers} watches are open; this process may open {files} files" in Path(log.name).read_text()


def test_parameters_role_imports_neither_torch_nor_gymnasium_nor_matplotlib() -> None:
    code = (
        "import sys, minefleet_parameters.role, minefleet.rpc.parameters_client; "
        "sys.exit(not sys.modules.keys().isdisjoint({'torch', 'gymnasium', 'matplotlib', 'safetensors'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
