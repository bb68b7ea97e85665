"""`minefleet parameters` on a run: it asks parameters while that runs, and works on its store when it does not."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from minefleet.cli import main
from minefleet.config import EndpointConfig, FleetConfig, ServicesConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.launch.ports import claim
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2

Weights = dict[str, NDArray[Any]]
Command = Callable[..., "Done"]
KEPT = 8


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        assert self.code == 0, self.stderr
        return dict(json.loads(self.stdout))

    def refusal(self, code: int) -> str:
        """The one line of a command that was refused."""
        assert (self.code, self.stdout) == (code, "")
        assert self.stderr.count("\n") == 1 and self.stderr.startswith("minefleet: ")
        return self.stderr


@pytest.fixture
def run(tmp_path: Path) -> Run:
    leaf = Leaf(kind="box", shape=(2,), dtype="float32")
    services = claim(ServicesConfig(parameters=EndpointConfig(address="127.0.0.1:0")))
    config, schema = FleetConfig(services=services), Schema(obs=leaf, action=leaf)
    run = Run(directory=tmp_path / "run", config=config, schema=schema, architecture="")
    run.directory.mkdir()
    run.write()
    return run


@pytest.fixture
def command(run: Run, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `minefleet parameters` on the run; the tools that it starts are processes."""

    def do(*words: str, options: tuple[str, ...] = ("--json",)) -> Done:
        capfd.readouterr()
        try:
            code = main(["parameters", *words, str(run.directory), *options])
        except SystemExit as end:
            code = int(str(end.code))
        return Done(code, *capfd.readouterr())

    return do


@contextmanager
def serving(run: Run, run_id: str = "run-7") -> Iterator[ParametersClient]:
    """Runs parameters, and yields a learner of a run; ends it by `kill -9`."""
    command = [sys.executable, "-m", "minefleet_parameters", "--run-dir", str(run.directory)]
    identity = run.identity(status_service_pb2.ROLE_LEARNER)
    address = run.config.services.parameters.address
    with (
        (run.directory / "log").open("ab") as log,
        subprocess.Popen(command, stderr=log) as process,
        closing(ParametersClient(address, identity=identity, patience_s=60.0)) as learner,
    ):
        try:
            learner.open_epoch(run_id)
            yield learner
        finally:
            process.kill()


def weights_of(number: int) -> Weights:
    return {"z": np.full((2, 3), number, np.float32), "a": np.full(2, True), "n": np.array(float(number))}


def publish(learner: ParametersClient, count: int) -> None:
    for _ in range(count):
        number = learner.versions()[-1].version + 1 if learner.versions() else 1
        assert learner.publish(weights_of(number), iteration=10 * number) == number


def assert_exported(target: Path, number: int) -> None:
    loaded = load_file(target / "model.safetensors")
    assert list(loaded) == list(weights_of(number))
    for name, array in weights_of(number).items():
        np.testing.assert_array_equal(array, loaded[name], strict=True)
    described = json.loads((target / "version.json").read_text())
    assert (described["run_id"], described["version"], described["iteration"]) == ("run-7", number, 10 * number)


def test_running_parameters_are_asked_and_a_stopped_store_is_read(run: Run, command: Command) -> None:
    with serving(run) as learner:
        publish(learner, 3)
        online = command("list").report
    offline = command("list").report
    assert (online.pop("online"), offline.pop("online")) == (True, False)
    assert online.pop("stats").items() >= {("newest_version", 3), ("kept_versions", 3)}
    assert online == offline
    assert [version["version"] for version in online["versions"]] == [1, 2, 3]
    assert online["disk_bytes"] > 0


def test_a_pin_holds_through_kills_until_it_is_unpinned(run: Run, command: Command) -> None:
    with serving(run) as learner:
        publish(learner, 2)
        assert command("pin", "--version", "1").report["pinned"]
        assert command("pin").report["version"] == 2
    assert command("unpin", "--version", "2").report["pinned"] is False
    with serving(run) as learner:
        publish(learner, KEPT + 1)
        assert [version["version"] for version in command("list").report["versions"]] == [1, *range(4, 4 + KEPT)]
    assert command("pin", "--version", "4").report["pinned"]
    with serving(run) as learner:
        publish(learner, 1)
        assert command("unpin", "--version", "1").report["tensors"] == 0
        kept = command("list").report["versions"]
    assert [(one["version"], one["pinned"]) for one in kept] == [(n, n == 4) for n in range(4, 5 + KEPT)]


def test_any_kept_version_is_exported_live_and_stopped_alike(run: Run, command: Command, tmp_path: Path) -> None:
    with serving(run) as learner:
        publish(learner, KEPT + 1)
        live = command("export", str(tmp_path / "newest")).report
        command("export", str(tmp_path / "two"), options=("--version", "2", "--json"))
    stopped = command("export", str(tmp_path / "again")).report
    assert_exported(tmp_path / "newest", KEPT + 1)
    assert_exported(tmp_path / "two", 2)
    assert live.pop("online") and not stopped.pop("online")
    assert (live.pop("directory"), stopped.pop("directory")) == (f"{tmp_path}/newest", f"{tmp_path}/again")
    assert live == stopped
    for name in ("model.safetensors", "version.json", "config.yaml"):
        assert (tmp_path / "newest" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert (tmp_path / "newest/config.yaml").read_text() == (run.directory / "run.yaml").read_text()


def test_a_version_that_is_not_there_is_refused_with_the_oldest_that_is(
    run: Run, command: Command, tmp_path: Path
) -> None:
    asked = [(("pin", "--version", "1"), ()), (("export", str(tmp_path / "out")), ("--version", "1"))]
    message = f"minefleet: version 1 is not there; the oldest available is 2, the newest {KEPT + 1}\n"
    with serving(run) as learner:
        for words in (("export", str(tmp_path / "out")), ("pin",)):
            assert "no version has been published yet" in command(*words).refusal(1)
        assert command("list").report["versions"] == []
        publish(learner, KEPT + 1)
        assert all(command(*words, options=options).refusal(1).endswith(message) for words, options in asked)
    assert all(command(*words, options=options).refusal(1).endswith(message) for words, options in asked)
    assert not (tmp_path / "out").exists()


def test_a_damaged_tensor_is_never_exported(run: Run, command: Command, tmp_path: Path) -> None:
    with serving(run) as learner:
        publish(learner, 2)
        path = max((run.parameters / "tensors").iterdir(), key=lambda path: (path.stat().st_size, path.name))
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        damaged = [number for number in (1, 2) if data.endswith(weights_of(number)["z"].tobytes())]
        options = ("--version", str(*damaged))
        live = command("export", str(tmp_path / "out"), options=options).refusal(1)
    stopped = command("export", str(tmp_path / "out"), options=options)
    assert f"minefleet: tensor {path.stem} is damaged on the disk of parameters" in live
    assert (stopped.code, stopped.stdout) == (1, "")
    assert f"minefleet: tensor {path.stem} is damaged on the disk of parameters" in stopped.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    command("export", str(tmp_path / "out"), options=("--version", str(3 - damaged[0])))
    assert_exported(tmp_path / "out", 3 - damaged[0])


def test_a_run_without_a_store_and_one_that_another_process_serves_are_refused(run: Run, command: Command) -> None:
    for words in (("list",), ("pin",), ("unpin", "--version", "3"), ("export", "out")):
        assert f"there is no store of parameters in {run.parameters}" in command(*words).refusal(2)
    assert not run.parameters.exists()
    with serving(run):
        tool = [sys.executable, "-m", "minefleet_parameters.tools", "list", "--run-dir", str(run.directory)]
        done = subprocess.run(tool, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"minefleet: another process serves the parameters in {run.parameters}\n"


def test_parameters_of_another_run_at_the_address_are_not_asked(run: Run, command: Command, tmp_path: Path) -> None:
    with serving(run) as learner:
        publish(learner, 1)
    run.parameters.rename(tmp_path / "store")
    with serving(run, "run-8") as learner:
        run.parameters.rename(tmp_path / "served")
        (tmp_path / "store").rename(run.parameters)
        assert command("list").report["online"] is False
        assert learner.versions() == []


def test_parameters_command_shows_what_it_finds(run: Run, command: Command, tmp_path: Path) -> None:
    with serving(run) as learner:
        assert "no version has been published yet" in command("list", options=()).stdout
        publish(learner, 2)
        assert "version 1 is kept until it is unpinned" in command("pin", "--version", "1", options=()).stdout
        shown = command("list", options=()).stdout
        assert "asked parameters" in shown and "pinned" in shown and "newest version 2" in shown
    assert "version 1 is not pinned and expires with its age" in command("unpin", "--version", "1", options=()).stdout
    assert "version 9 is not pinned and is not there any more" in command("unpin", "--version", "9", options=()).stdout
    shown = command("list", options=()).stdout
    assert "read its store" in shown and "newest" in shown and "pinned" not in shown
    out = command("export", str(tmp_path / "out"), options=()).stdout
    assert out.startswith("version 2 of iteration 20: 3 tensors, ") and out.endswith(f" in {tmp_path}/out\n")
