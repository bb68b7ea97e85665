import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc
from minefleet_parameters import watcher_counts

Parameters = Any
"""The `Parameters` of conftest.py, which cannot be imported here."""

WATCHERS = 30
PATIENCE_S = 60.0
WATCH_MANY = """
import sys, grpc
from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.v1 import parameters_service_pb2, parameters_service_pb2_grpc
calls = []
for number in range(int(sys.argv[2])):
    options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    stub = parameters_service_pb2_grpc.ParametersServiceStub(grpc.insecure_channel(sys.argv[1], options))
    request = parameters_service_pb2.WatchRequest(watcher=str(number), running_version=1)
    calls.append(stub.Watch(request, timeout=600))
    next(calls[-1])
print("watching", flush=True)
version = int(sys.stdin.readline())
for call in calls:
    while next(call).newest.version < version:
        pass
print("heard", flush=True)
sys.stdin.read()
"""


def weights(seed: int) -> dict[str, NDArray[Any]]:
    return {"layer.weight": np.full(100, seed, np.float32)}


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def client(parameters: Parameters, clients: ExitStack) -> Callable[..., ParametersClient]:
    """Connects: `client("name")`."""

    def connect(watcher: str) -> ParametersClient:
        connected: ParametersClient = clients.enter_context(closing(parameters.client(watcher=watcher)))
        return connected

    return connect


@pytest.fixture
def learner(client: Callable[..., ParametersClient]) -> ParametersClient:
    connected = client("learner")
    connected.open_epoch("run")
    connected.publish(weights(1), iteration=1)
    return connected


@pytest.fixture
def watching(parameters: Parameters, clients: ExitStack) -> Callable[..., Any]:
    """Opens a watch on a connection of its own and waits for what it hears first."""

    def open_watch(**request: Any) -> Any:
        options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        channel = clients.enter_context(grpc.insecure_channel(parameters.address, options))
        stub = parameters_service_pb2_grpc.ParametersServiceStub(channel)
        call = stub.Watch(pb.WatchRequest(**request), timeout=PATIENCE_S)
        clients.callback(call.cancel)
        next(call)
        return call

    return open_watch


@contextmanager
def many_watchers(address: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", WATCH_MANY, address, str(WATCHERS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        yield process
        process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    tick = threading.Event()
    while not condition():
        tick.wait(0.01)


def test_filming_stays_with_the_first_watcher_that_can_when_it_reconnects(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any]
) -> None:
    onlooker, first = watching(watcher="onlooker"), watching(watcher="first", can_film=True)
    assert next(onlooker).films == "first"
    watching(watcher="second", can_film=True)
    watching(can_film=True)
    first.cancel()
    watching(watcher="first", can_film=True)
    learner.publish(weights(2), iteration=2)
    announcement = next(onlooker)
    assert (announcement.newest.version, announcement.films) == (2, "first")


def test_filming_passes_to_the_next_watcher_that_can_film_when_one_leaves(
    learner: ParametersClient, watching: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_counts, "RECONNECT_S", 0.01)
    onlooker = watching()
    cameras = [watching(watcher=name, can_film=True) for name in ("first", "second")]
    for camera, films in zip(cameras, ("first", "second"), strict=True):
        assert next(onlooker).films == films
        camera.cancel()
    assert next(onlooker).films == ""


def test_parameters_client_knows_whether_it_films(
    parameters: Parameters, learner: ParametersClient, clients: ExitStack
) -> None:
    one, other = (
        clients.enter_context(closing(parameters.client(watcher=name, can_film=name == "one")))
        for name in ("one", "other")
    )
    for client in (one, other):
        with closing(client.watch()) as watch:
            next(watch)
    assert (one.films, other.films) == (True, False)


def test_a_watcher_whose_name_is_too_long_is_refused(learner: ParametersClient, watching: Callable[..., Any]) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        watching(watcher="w" * 501, can_film=True)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_watch_does_not_announce_a_pin(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any], clients: ExitStack
) -> None:
    watch = watching()
    channel = clients.enter_context(grpc.insecure_channel(parameters.address))
    parameters_service_pb2_grpc.ParametersServiceStub(channel).Pin(pb.PinRequest(pinned=True), timeout=PATIENCE_S)
    learner.publish(weights(2), iteration=2)
    assert next(watch).newest.version == 2


def test_oldest_running_version_is_the_one_used_and_not_the_one_fetched(
    parameters: Parameters, client: Callable[..., ParametersClient], learner: ParametersClient
) -> None:
    actors = [client(name) for name in "ab"]
    watches = [actor.watch() for actor in actors]
    for actor, watch in zip(actors, watches, strict=True):
        next(watch)
        actor.runs(actor.fetch()[0].version)
    learner.publish(weights(2), iteration=2)
    for actor in actors:
        actor.fetch()
        actor.fetch()
    assert parameters.figure("oldest_running_version") == 1
    for actor in actors:
        actor.runs(2)
    actors[0].fetch()
    assert parameters.figure("oldest_running_version") == 1
    actors[1].fetch()
    assert parameters.figure("oldest_running_version") == 2
    for watch in watches:
        watch.close()


def test_a_watcher_that_reconnects_is_known_until_its_last_watch_has_ended(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any]
) -> None:
    old, new = (watching(watcher="a", running_version=1) for _ in range(2))
    watching(watcher="b", running_version=2)
    old.cancel()
    wait_for(lambda: parameters.figure("watchers") == 2)
    assert parameters.figure("oldest_running_version") == 1
    new.cancel()
    wait_for(lambda: parameters.figure("watchers") == 1)
    assert parameters.figure("oldest_running_version") == 2


def test_versions_of_nameless_watchers_and_of_callers_that_do_not_watch_are_not_counted(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any], client: Callable[..., Any]
) -> None:
    learner.publish(weights(2), iteration=2)
    watching(running_version=1)
    stranger = client("stranger")
    stranger.runs(1)
    stranger.fetch()
    assert parameters.figure("watchers") == 1
    assert parameters.figure("oldest_running_version") == 0


def test_killed_watchers_leave_no_task_and_no_count(parameters: Parameters, learner: ParametersClient) -> None:
    idle = len(asyncio.all_tasks(parameters.loop))
    with many_watchers(parameters.address):
        assert parameters.figure("watchers") == WATCHERS
        assert parameters.figure("oldest_running_version") == 1
        assert len(asyncio.all_tasks(parameters.loop)) >= idle + WATCHERS
    wait_for(lambda: len(asyncio.all_tasks(parameters.loop)) <= idle)
    assert parameters.figure("watchers") == 0
    assert parameters.figure("oldest_running_version") == 0


def test_frozen_watchers_keep_nobody_waiting_and_hear_the_newest_when_they_thaw(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any]
) -> None:
    watch = watching()
    with many_watchers(parameters.address) as frozen:
        frozen.send_signal(signal.SIGSTOP)
        for version in range(2, 40):
            assert learner.publish(weights(version), iteration=version) == version
            assert next(watch).newest.version == version
        frozen.send_signal(signal.SIGCONT)
        print(version, file=frozen.stdin, flush=True)
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "heard\n"
    wait_for(lambda: parameters.figure("watchers") == 1)
