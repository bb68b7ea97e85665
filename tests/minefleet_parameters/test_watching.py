import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.parameters import ParametersClient, Wish
from minefleet.rpc import CLIENT_OPTIONS
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc
from minefleet_parameters.wishes import CLAIM_TIMEOUT_S

Parameters = Any
"""The `Parameters` of conftest.py, which cannot be imported here."""
Watching = Callable[..., "grpc.Call"]

WATCHERS = 30
PATIENCE_S = 60.0
WATCH_MANY = """
import sys, grpc
from minefleet.rpc import CLIENT_OPTIONS
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
    connected.publish(weights(1), iteration=1, wishes=[Wish("one"), Wish("two")])
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


def heard(call: Any) -> tuple[int, list[str]]:
    """The next announcement: its version and pending wishes."""
    response = next(call)
    return response.newest.version, [wish.name for wish in response.pending]


def test_a_wish_that_is_taken_wakes_nobody_and_one_that_comes_back_wakes_every_watch(
    parameters: Parameters,
    client: Callable[..., ParametersClient],
    learner: ParametersClient,
    watching: Callable[..., Any],
) -> None:
    watches = [watching(), watching()]
    client("a").claim("one")
    learner.publish(weights(2), iteration=2)
    assert [heard(watch) for watch in watches] == [(2, ["two"])] * 2
    parameters.clock.now_s = CLAIM_TIMEOUT_S - 0.01
    client("b").claim("two")
    parameters.clock.now_s = CLAIM_TIMEOUT_S
    assert [heard(watch) for watch in watches] == [(2, ["one"])] * 2


def test_the_client_tells_of_wishes_that_come_back_and_of_nothing_twice(
    parameters: Parameters, client: Callable[..., ParametersClient], learner: ParametersClient
) -> None:
    with closing(client("a").watch()) as watch, ThreadPoolExecutor(1) as pool:
        assert next(watch).wishes == (Wish("one"), Wish("two"))
        again = pool.submit(next, watch)
        client("b").claim("one")
        client("b").claim("two", done=True)
        parameters.clock.now_s = CLAIM_TIMEOUT_S - 0.01
        assert not client("c").claim("one")
        assert not again.done()
        parameters.clock.now_s = CLAIM_TIMEOUT_S
        info = again.result(PATIENCE_S)
        assert (info.version, info.wishes) == (1, (Wish("one"),))


def test_a_pin_is_no_news(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any], clients: ExitStack
) -> None:
    watch = watching()
    channel = clients.enter_context(grpc.insecure_channel(parameters.address))
    parameters_service_pb2_grpc.ParametersServiceStub(channel).Pin(pb.PinRequest(pinned=True), timeout=PATIENCE_S)
    learner.publish(weights(2), iteration=2)
    assert heard(watch)[0] == 2


def test_the_oldest_version_is_the_one_that_is_used_and_not_the_one_that_was_fetched(
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


def test_what_nameless_watchers_and_those_who_do_not_watch_run_is_not_counted(
    parameters: Parameters, learner: ParametersClient, watching: Callable[..., Any], client: Callable[..., Any]
) -> None:
    learner.publish(weights(2), iteration=2)
    watching(running_version=1)
    stranger = client("stranger")
    stranger.runs(1)
    stranger.fetch()
    assert parameters.figure("watchers") == 1
    assert parameters.figure("oldest_running_version") == 0


def test_of_killed_watchers_nothing_is_left(parameters: Parameters, learner: ParametersClient) -> None:
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
            assert heard(watch)[0] == version
        frozen.send_signal(signal.SIGCONT)
        print(version, file=frozen.stdin, flush=True)
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "heard\n"
    wait_for(lambda: parameters.figure("watchers") == 1)
