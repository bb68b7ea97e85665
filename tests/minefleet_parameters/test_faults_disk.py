"""Disks that are full, damaged or another's, and too few file handles."""

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests.minefleet_parameters.conftest import running
from tests.parameters_process import RUN, ParametersProcess, Weights, header_of, status_of, weights_of
from tests.role_process import TIMEOUT_S, small_disk, wait_for

from minefleet.core.errors import ConfigError, CorruptError, FleetError, OverloadedError
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet_parameters.store import open_store

DISK_BYTES = 24 * 2**20
LARGE = 2**22
BLOCK_BYTES = 4096
HANDLES = 64
CHANGED_BYTES = LARGE * 10 // 16 + 4 * BLOCK_BYTES
"""Size of the tensor files that one set of large weights does not share with the next."""


def fill(path: Path, *, leaving_bytes: int = 0) -> None:
    """Takes all the room there is, but for so many bytes."""
    with path.open("ab", buffering=0) as ballast:
        with suppress(OSError):
            while True:
                ballast.write(bytes(BLOCK_BYTES))
        ballast.truncate(max(0, ballast.tell() - leaving_bytes))


def assert_holds(client: ParametersClient, version: int, weights: Weights) -> None:
    info, fetched = client.fetch()
    assert info.version == version
    assert all((fetched[name] == array).all() for name, array in weights.items())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ParametersProcess]:
    """A parameters with a disk of its own."""
    with small_disk(tmp_path / "parameters", DISK_BYTES):
        yield ParametersProcess(tmp_path)


@pytest.mark.parametrize(
    "leaving_bytes", [0, LARGE // 2, CHANGED_BYTES], ids=["at the first piece", "in the middle", "at the manifest"]
)
def test_a_full_disk_refuses_a_publish_serves_the_old_version_and_recovers_by_itself(
    small: ParametersProcess, leaving_bytes: int
) -> None:
    ballast = small.store / "ballast"
    with small.running(), small.client(patience_s=0.0) as learner, small.client() as actor:
        learner.open_epoch(RUN)
        learner.publish(weights_of(1, LARGE), iteration=1)
        fill(ballast, leaving_bytes=leaving_bytes)
        for _ in range(2):
            with pytest.raises(OverloadedError, match="the disk is full") as refusal:
                learner.publish(weights_of(2, LARGE), iteration=2)
            assert refusal.value.retry_after_s > 1
            wait_for(lambda: small.leftovers() == {"ballast"})
        assert_holds(actor, 1, weights_of(1, LARGE))
        ballast.unlink()
        assert learner.publish(weights_of(2, LARGE), iteration=2) == 2
        assert_holds(actor, 2, weights_of(2, LARGE))
        assert small.end() == 0
    with small.running(), small.client() as actor:
        assert_holds(actor, 2, weights_of(2, LARGE))


def test_parameters_on_a_full_disk_issue_no_epoch_and_pin_nothing(small: ParametersProcess) -> None:
    with small.running(), small.client(patience_s=0.0) as client, small.stub() as stub:
        epoch = client.open_epoch(RUN).epoch
        client.publish(weights_of(1), iteration=1)
        fill(small.store / "ballast")
        with pytest.raises(OverloadedError):
            client.open_epoch(RUN)
        pin = pb.PinRequest(version=1, pinned=True)
        assert status_of(lambda: stub.Pin(pin, timeout=TIMEOUT_S)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        (small.store / "ballast").unlink()
        assert not stub.ListVersions(pb.ListVersionsRequest(), timeout=TIMEOUT_S).versions[0].pinned
        assert client.open_epoch(RUN).epoch == epoch + 1


def call_until_refused(call: Callable[[], object]) -> None:
    """A handle that was given back may serve one more call, before the next connection takes it."""
    refusals: list[str] = []

    def is_refused() -> bool:
        try:
            call()
        except OverloadedError as error:
            refusals.append(str(error))
        return bool(refusals)

    wait_for(is_refused)
    assert "Too many open files" in refusals[0]


def test_parameters_short_of_file_handles_refuse_calls_and_recover(tmp_path: Path) -> None:
    parameters = ParametersProcess(tmp_path)
    host, _, port = parameters.address.rpartition(":")
    with parameters.running("prlimit", f"--nofile={HANDLES}:{HANDLES}") as process:
        with parameters.client(patience_s=0.0) as learner, ExitStack() as stack:
            learner.open_epoch(RUN)
            published = [learner.publish(weights_of(1), iteration=1)]
            for _ in range(HANDLES):
                stack.enter_context(socket.create_connection((host, int(port))))
            wait_for(lambda: psutil.Process(process.pid).num_fds() >= HANDLES - 1)
            call_until_refused(lambda: published.append(learner.publish(weights_of(1 + len(published)), iteration=1)))
            assert published == list(range(1, 1 + len(published)))
            call_until_refused(learner.fetch)
            stack.close()
            wait_for(lambda: psutil.Process(process.pid).num_fds() < HANDLES - 10)
            assert learner.publish(weights_of(0), iteration=0) == len(published) + 1
            assert_holds(learner, len(published) + 1, weights_of(0))
        wait_for(lambda: not parameters.leftovers())
    assert "internal error" not in parameters.log.read_text()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run with three versions."""
    directory = tmp_path_factory.mktemp("stopped")
    parameters = ParametersProcess(directory)
    with parameters.running(), parameters.client() as learner:
        learner.open_epoch(RUN)
        for seed in (1, 2, 3):
            learner.publish(weights_of(seed), iteration=seed)
        assert parameters.end() == 0
    return parameters.store


@pytest.fixture
def parameters(stopped: Path, tmp_path: Path) -> ParametersProcess:
    """A copy of it, that nobody serves yet."""
    shutil.copytree(stopped, tmp_path / "parameters")
    return ParametersProcess(tmp_path)


def change(name: str, old: str, new: str) -> Callable[[Path], Any]:
    def damage(store: Path) -> None:
        text = (store / name).read_text()
        assert old in text
        (store / name).write_text(text.replace(old, new, 1))

    return damage


RECORDS: dict[str, Callable[[Path], Any]] = {
    "identity.json: no JSON": lambda store: (store / "identity.json").write_text("{"),
    "identity.json: no text": lambda store: (store / "identity.json").write_bytes(b"\xff" * 80),
    "identity.json: empty": lambda store: (store / "identity.json").write_bytes(b""),
    "identity.json: another type": change("identity.json", '"epoch": 1', '"epoch": "1"'),
    "identity.json: an earlier epoch": change("identity.json", '"epoch": 1', '"epoch": 0'),
    "identity.json: another run": change("identity.json", '"run_id": "run"', '"run_id": "rum"'),
    "identity.json: gone": lambda store: (store / "identity.json").unlink(),
    "versions/3.json: no JSON": lambda store: (store / "versions/3.json").write_text("{"),
    "versions/3.json: no text": lambda store: (store / "versions/3.json").write_bytes(b"\xff" * 80),
    "versions/3.json: another name": change("versions/3.json", "trained", "trainer"),
    "versions/3.json: another dtype": change("versions/3.json", "FLOAT32", "INT32"),
    "versions/3.json: another version": change("versions/3.json", '"version": "3"', '"version": "7"'),
    "versions/3.json: a path for a digest": change("versions/3.json", '"digest": "', '"digest": "../'),
}


@pytest.mark.parametrize("damage", RECORDS)
def test_a_damaged_record_is_refused_with_one_line_that_names_it(parameters: ParametersProcess, damage: str) -> None:
    RECORDS[damage](parameters.store)
    with pytest.raises(FleetError) as refusal, running(parameters.store):
        pass
    assert damage.partition(":")[0] in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_number_of_a_version_that_was_set_aside_is_never_issued_again(parameters: ParametersProcess) -> None:
    record = parameters.store / "versions/3.json"
    record.write_text("{")
    code, log = parameters.refusal()
    assert code == 1 and "Traceback" not in log
    assert "Rename it to 3.damaged" in log and log.count(" ERROR ") == 1
    record.rename(record.with_name("3.damaged"))
    for seed in (4, 5):
        with parameters.running(), parameters.client() as client:
            client.open_epoch(RUN, epoch=1, version=2)
            assert client.publish(weights_of(seed), iteration=seed) == seed
            assert not parameters.leftovers()
    assert "3.json" not in {path.name for path in (parameters.store / "versions").iterdir()}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


TENSORS: dict[str, Callable[[Path], Any]] = {
    "a flipped bit": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "before it starts"])
@pytest.mark.parametrize("damage", TENSORS)
def test_a_damaged_tensor_is_never_served_and_the_next_publish_renews_it(
    parameters: ParametersProcess, damage: str, *, running: bool
) -> None:
    digest = header_of(weights_of(3), expected=0).manifest.tensors[0].digest
    path = parameters.store / "tensors" / f"{digest}.safetensors"
    if not running:
        TENSORS[damage](path)
    with parameters.running(), parameters.client(patience_s=0.0) as learner, parameters.client() as actor:
        if running:
            TENSORS[damage](path)
        with pytest.raises(CorruptError, match=rf"'frozen'|{digest}"):
            actor.fetch()
        learner.open_epoch(RUN)
        assert learner.publish(weights_of(4), iteration=4) == 4
        assert_holds(actor, 4, weights_of(4))
        assert not parameters.leftovers()


def test_parameters_on_a_port_or_store_of_another_process_are_refused(
    parameters: ParametersProcess, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with parameters.running():
        code, log = ParametersProcess(tmp_path / "other", address=parameters.address).refusal()
        assert code == 2
        assert f"services.parameters.address: cannot listen on {parameters.address}" in log
        with pytest.raises(ConfigError, match="another process serves"), open_store(parameters.store, keep=3):
            pass
