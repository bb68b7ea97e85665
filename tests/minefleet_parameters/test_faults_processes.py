"""Parameters, its learners and its actors as processes that are frozen, killed and asked to stop."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.minefleet_parameters.witnesses import weights_of as witnessed
from tests.parameters_process import RUN, ParametersProcess, weights_of
from tests.proxy import Proxy
from tests.role_process import TIMEOUT_S, wait_for

from minefleet.rpc.parameters_client import ParametersClient

WITNESSES = Path(__file__).with_name("witnesses.py")


@pytest.fixture
def parameters(tmp_path: Path) -> ParametersProcess:
    return ParametersProcess(tmp_path)


@contextmanager
def learner(parameters: ParametersProcess, record: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A learner that publishes for ever."""
    command = [sys.executable, str(WITNESSES), "learner", parameters.address, str(record), RUN, "0", "0"]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def rows(record: Path) -> list[dict[str, Any]]:
    lines = record.read_text().splitlines(keepends=True) if record.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def has_rows(record: Path, count: int) -> bool:
    return len(rows(record)) >= count


def test_parameters_fence_a_learner_frozen_in_a_publish_while_another_took_over(parameters: ParametersProcess) -> None:
    record = parameters.directory / "frozen.jsonl"
    with parameters.running(), learner(parameters, record) as frozen, parameters.client() as successor:
        wait_for(lambda: len(rows(record)) > 4 and any((parameters.store / "incoming").iterdir()))
        frozen.send_signal(signal.SIGSTOP)
        opened = successor.open_epoch(RUN, epoch=1, version=1)
        first = successor.publish(witnessed(2, 0), iteration=0)
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(TIMEOUT_S) == 0
        assert "epoch 1 may not publish: epoch 2 is the newest" in rows(record)[-1]["fenced"]
        acked = [row["version"] for row in rows(record) if row.get("acked")]
        assert (opened.epoch, first) == (2, opened.newest_version + 1)
        assert max(acked) <= opened.newest_version
        assert successor.publish(witnessed(2, 1), iteration=1) == first + 1
        wait_for(lambda: not parameters.leftovers())


@contextmanager
def answer_lost(
    parameters: ParametersProcess, method: str, call: Callable[[ParametersClient], Any]
) -> Iterator[tuple[Any, ParametersClient]]:
    """Kills parameters after it has done what `call` asks and before the answer arrives, and starts it again.

    Yields the answer to the repeated call, and the client.
    """
    with (
        Proxy(parameters.address) as proxy,
        parameters.client(proxy.address, watcher="actor") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        with parameters.running():
            client.open_epoch(RUN)
            client.publish(weights_of(1), iteration=1)
            handled = partial(parameters.sample, "grpc_server_handled_total", grpc_method=method, grpc_code="OK")
            before = handled()
            proxy.hold("down")
            answer = pool.submit(call, client)
            wait_for(lambda: handled() > before)
        proxy.reset()
        proxy.resume()
        with parameters.running():
            yield answer.result(), client


def test_parameters_killed_before_they_answer_a_publish_have_it_once(parameters: ParametersProcess) -> None:
    def publish(client: ParametersClient) -> int:
        return client.publish(weights_of(2), iteration=2)

    with answer_lost(parameters, "Publish", publish) as (version, client):
        assert version == 2
        info, weights = client.fetch()
        assert info.version == 2
        assert all((weights[name] == array).all() for name, array in weights_of(2).items())


def test_parameters_killed_before_they_answer_an_epoch_issue_a_higher_one(parameters: ParametersProcess) -> None:
    with answer_lost(parameters, "OpenEpoch", lambda client: client.open_epoch(RUN)) as (opened, client):
        assert (opened.epoch, opened.newest_version) == (3, 1)
        assert client.publish(weights_of(2), iteration=2) == 2


def test_parameters_at_sigterm_under_load_exit_with_0_and_lose_no_acked_version(parameters: ParametersProcess) -> None:
    record = parameters.directory / "learner.jsonl"
    with parameters.running(), learner(parameters, record):
        for _ in range(3):
            wait_for(partial(has_rows, record, len(rows(record)) + 4))
            assert parameters.end() == 0
            acked = [row["version"] for row in rows(record) if row.get("acked")]
            assert list((parameters.store / "incoming").iterdir()) == []
            parameters.start()
            with parameters.client() as actor:
                assert actor.fetch()[0].version >= acked[-1]
        assert parameters.end() == 0
    acked = [row["version"] for row in rows(record) if row.get("acked")]
    assert acked == list(range(1, len(acked) + 1))


def test_parameters_watch_that_was_cut_off_reconnects_and_receives_the_newest_version_alone(
    parameters: ParametersProcess,
) -> None:
    with (
        parameters.running(),
        Proxy(parameters.address) as proxy,
        parameters.client() as learner,
        parameters.client(proxy.address) as actor,
        ThreadPoolExecutor(1) as pool,
    ):
        learner.open_epoch(RUN)
        learner.publish(weights_of(1), iteration=1)
        watch = actor.watch()
        assert next(watch).version == 1
        proxy.hold("up", "down")
        heard = pool.submit(next, watch)
        for seed in range(2, 6):
            learner.publish(weights_of(seed), iteration=seed)
        assert not heard.done()
        proxy.reset()
        proxy.resume()
        assert heard.result().version == 5
        watch.close()
