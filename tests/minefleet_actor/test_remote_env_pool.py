"""Hosts that fail, lie and come back: nothing of it reaches a slot but the end of its episode.

That a host's environments otherwise play as an actor's own is in test_pool.
"""

import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.minefleet_actor.faulty_env import Act
from tests.minefleet_actor.hosted import PlayedElsewhere, ServedPool, Words, start_host, words
from tests.minefleet_actor.test_pool_faults import config_of, kinds, results
from tests.minefleet_runtime.test_http_endpoint import get
from tests.proxy import Proxy
from tests.role_process import TIMEOUT_S, free_address, wait_for

from minefleet.config import EnvConfig, FleetConfig, WorkerConfig
from minefleet.core.errors import EXIT_CONFIG
from minefleet.core.schema import Schema
from minefleet.envs import make, schema_of
from minefleet.rpc.handshake import WIRE_VERSION
from minefleet.rpc.tensor_compression import PACKINGS, pack_bytes, unpack_bytes
from minefleet.runs.run_yaml import to_dict
from minefleet.v1 import tensor_pb2
from minefleet.v1.worlds_service_pb2 import Hello, Result
from minefleet_actor.pool import EnvGaveUpError, Kind, Pool

ALL = np.arange(2)
NONE = tensor_pb2.CODEC_NONE


def opened(kind: type[ServedPool], directory: Path, **worker: Any) -> Any:
    config = config_of(directory)
    pool = kind(config, schema_of(make(config)), WorkerConfig(num_envs=2, **worker), seed=0, actor_index=0)
    pool.start()
    return pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Any]:
    """A pool that a host process plays, all of whose slots have begun an episode."""
    pool = opened(PlayedElsewhere, tmp_path)
    play(pool, Kind.RESET)
    yield pool
    pool.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    """A pool without a host."""
    pool = opened(ServedPool, tmp_path, step_timeout_s=0.5)
    yield pool
    pool.close()


@contextmanager
def asked(obs: dict[str, Any], action: dict[str, Any]) -> Iterator[tuple[ServedPool, Words]]:
    """A pool of one slot and two boxes, and a host that was welcomed and asked for a reset."""
    box = {"kind": "box", "categories": [], "low": "0.0", "high": "1.0"}
    schema = Schema.from_dict({"obs": {"": box | obs}, "action": {"": box | action}})
    pool = ServedPool(EnvConfig(), schema, WorkerConfig(num_envs=1), seed=0, actor_index=0)
    pool.start()
    try:
        with words(pool.address) as host:
            host.hello()
            pool.reset(ALL[:1])
            pool.wait(0.0)
            next(host.answers)
            yield pool, host
    finally:
        pool.close()


def play(pool: Pool, kind: Kind, *actions: int) -> None:
    """Resets all slots, or steps them, and expects the same of each."""
    if actions:
        pool.step(ALL, np.array(actions))
    else:
        pool.reset(ALL)
    assert kinds(results(pool, {0, 1})) == {0: kind, 1: kind}


def obs_of(count: float = 1.0, mode: int = 0) -> list[bytes]:
    return [np.full(2, count, np.float32).tobytes(), np.int64(mode).tobytes()]


def text_of(pool: Pool) -> str:
    """The text with which slot 0 fails, alone."""
    ready = results(pool, {0})[0]
    assert ready.kind[0] == Kind.FAILED
    return ready.failures[0].text


def begin(pool: Pool, host: Words) -> None:
    """Has the host begin an episode in slot 0."""
    assert json.loads(next(host.answers).welcome.schema) == schema_of(make(pool._env_config)).to_dict()
    pool.reset(ALL[:1])
    pool.wait(0.0)
    (command,) = host.commands()
    assert not command.actions and command.seed >= 0
    host.say(Result(obs=obs_of(), codec=NONE))
    assert kinds(results(pool, {0})) == {0: Kind.RESET}


@pytest.mark.parametrize("name", ["world.js", "world_client.py"])
def test_a_world_without_our_library_speaks_the_wire_version_of_actors(name: str) -> None:
    text = (Path(__file__).parents[2] / "examples" / name).read_text()
    assert re.findall(r"WIRE_VERSION\b\D*?= \[?(\d+)", text) == [str(WIRE_VERSION)]


def test_a_killed_host_costs_its_episodes_and_the_next_one_goes_on(pool: Any) -> None:
    below = psutil.Process(pool.host.pid).children(recursive=True)
    pool.step(ALL, np.array([Act.DAWDLE, Act.DAWDLE]))
    pool.wait(0.0)
    pool.host.kill()
    pool.host.wait(TIMEOUT_S)
    said = results(pool, {0, 1})
    assert kinds(said) == {0: Kind.FAILED, 1: Kind.FAILED}
    assert said[0].failures[0].kind == "exit" and "has gone" in said[0].failures[0].text
    assert not psutil.wait_procs(below, TIMEOUT_S)[1]
    pool.reset(ALL)
    assert len(pool.wait(0.2).slots) == 0
    pool.host = start_host(pool.config, pool.address)
    assert kinds(results(pool, {0, 1})) == {0: Kind.RESET, 1: Kind.RESET}
    play(pool, Kind.STEP, Act.GO_ON, Act.GO_ON)


def test_a_host_that_is_asked_to_stop_says_so_and_leaves_nothing(pool: Any) -> None:
    below = psutil.Process(pool.host.pid).children(recursive=True)
    pool.host.send_signal(signal.SIGTERM)
    assert pool.host.wait(TIMEOUT_S) == 0
    assert kinds(results(pool, {0, 1})) == {0: Kind.FAILED, 1: Kind.FAILED}
    assert not psutil.wait_procs(below, TIMEOUT_S)[1]


@pytest.mark.parametrize(("act", "kind"), [(Act.RAISE, "exception"), (Act.EXIT, "exit"), (Act.NAN_OBS, "contract")])
def test_a_failing_environment_of_a_host_is_a_failure_of_its_slot_only(pool: Any, act: Act, kind: str) -> None:
    pool.step(ALL, np.array([act, Act.GO_ON]))
    said = results(pool, {0, 1})
    assert kinds(said) == {0: Kind.FAILED, 1: Kind.STEP}
    assert said[0].failures[0].kind == kind
    pool.reset(ALL[:1])
    assert kinds(results(pool, {0})) == {0: Kind.RESET}
    play(pool, Kind.STEP, Act.GO_ON, Act.GO_ON)


def test_a_host_makes_as_many_environments_as_it_has_slots_and_tells_its_probes(tmp_path: Path) -> None:
    pool, address = opened(ServedPool, tmp_path), free_address()
    config = PlayedElsewhere(pool._env_config, pool._spaces, WorkerConfig(num_envs=2), seed=0, actor_index=0).config
    host = start_host(config, pool.address, "--metrics-address", address, num_envs=4)
    try:
        play(pool, Kind.RESET)
        below = psutil.Process(host.pid).children(recursive=True)
        assert sum("serve" in child.cmdline() for child in below) == 2
        assert get(address, "/healthz")[0] == 200 and get(address, "/readyz") == (200, "running: plays 2 worlds\n")
        page = get(address, "/metrics")[1]
        assert "minefleet_host_worlds 2.0" in page and "minefleet_host_results_total 2.0" in page
        pool.close()
        wait_for(lambda: get(address, "/readyz")[0] == 503)
        assert "minefleet_host_worlds 0.0" in get(address, "/metrics")[1]
        host.terminate()
        assert host.wait(TIMEOUT_S) == 0
    finally:
        host.kill()


@pytest.mark.parametrize("arguments", [["--actor", "nowhere"], ["--actor", "here:1", "--metrics-address", "x"]])
def test_a_host_with_no_address_ends_and_names_it(arguments: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "minefleet_actor.env_hosts.remote_env_host",
        json.dumps(to_dict(FleetConfig())),
        *arguments,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == EXIT_CONFIG
    assert f"{arguments[-2]} must be host:port, got {arguments[-1]!r}" in done.stderr


def test_host_of_environments_in_batches_is_refused_before_it_dials() -> None:
    config = FleetConfig(env=EnvConfig(generator="gymnasium:make_vec", batched=True))
    command = [
        sys.executable,
        "-m",
        "minefleet_actor.env_hosts.remote_env_host",
        json.dumps(to_dict(config)),
        "--actor",
        free_address(),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == EXIT_CONFIG
    assert "env.batched: a host plays environments that step one by one" in done.stderr


def test_an_environment_that_dies_between_two_commands_fails_the_next_step(pool: Any) -> None:
    serving = [child for child in psutil.Process(pool.host.pid).children(recursive=True) if "serve" in child.cmdline()]
    serving[0].kill()
    serving[0].wait(TIMEOUT_S)
    wait_for(lambda: len(psutil.Process(pool.host.pid).children(recursive=True)) > 0)
    pool.step(ALL, np.array([Act.GO_ON, Act.GO_ON]))
    assert sorted(kinds(results(pool, {0, 1})).values()) == [Kind.STEP, Kind.FAILED]


@pytest.mark.fleet
@pytest.mark.parametrize("freeze", [True, False])
def test_a_host_out_of_reach_is_given_up_and_returns_with_its_environments(tmp_path: Path, freeze: bool) -> None:
    pool = opened(ServedPool, tmp_path)
    config = PlayedElsewhere(pool._env_config, pool._spaces, WorkerConfig(num_envs=2), seed=0, actor_index=0).config
    with Proxy(pool.address) as proxy:
        host = start_host(config, proxy.address)
        play(pool, Kind.RESET)
        below = {child.pid for child in psutil.Process(host.pid).children(recursive=True)}
        if freeze:
            host.send_signal(signal.SIGSTOP)
        else:
            proxy.hold("up", "down")
        pool.step(ALL, np.array([Act.GO_ON, Act.GO_ON]))
        assert kinds(results(pool, {0, 1})) == {0: Kind.FAILED, 1: Kind.FAILED}
        pool.reset(ALL)
        assert len(pool.wait(0.2).slots) == 0
        if freeze:
            host.send_signal(signal.SIGCONT)
        else:
            proxy.resume()
        assert kinds(results(pool, {0, 1})) == {0: Kind.RESET, 1: Kind.RESET}
        assert {child.pid for child in psutil.Process(host.pid).children(recursive=True)} == below
        play(pool, Kind.STEP, Act.GO_ON, Act.GO_ON)
        pool.close()
        host.terminate()
        assert host.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Result(world=1, obs=obs_of(), codec=NONE), "there is no world 1"),
        (Result(obs=obs_of()[:1], codec=NONE), "an observation has 2 arrays, got 1"),
        (Result(obs=[b"123", obs_of()[1]], codec=NONE), "holds 3 bytes, its shape needs 8"),
        (Result(obs=obs_of()), "unknown codec"),
        (Result(obs=[bytes(50), obs_of()[1]], codec=tensor_pb2.CODEC_LZ4), "is no LZ4 frame"),
        (Result(failure="boredom"), "there is no failure 'boredom'"),
        (Result(obs=obs_of(), codec=NONE, task="x" * 2**18), "may take 131072 bytes"),
        (None, "must hold results"),
    ],
)
def test_a_host_that_talks_nonsense_is_cut_off_and_told_why(served: Any, result: Result | None, why: str) -> None:
    with words(served.address) as host:
        host.hello()
        begin(served, host)
        served.step(ALL[:1], np.array([Act.GO_ON]))
        served.wait(0.0)
        (command,) = host.commands()
        assert np.frombuffer(command.actions[0], np.int64) == Act.GO_ON
        host.say(*([result] if result else []))
        assert why in text_of(served)
        with pytest.raises(grpc.RpcError, match=why):
            host.commands()
    with words(served.address) as other:
        other.hello()
        begin(served, other)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Result(obs=obs_of(np.nan), codec=NONE), "observation 'count' must be finite"),
        (Result(obs=obs_of(mode=3), codec=NONE), "observation 'mode' must count categories below"),
        (Result(obs=obs_of(), codec=NONE, reward=np.inf), "must be finite"),
        (Result(obs=obs_of(), codec=NONE, truncated=True, metrics={"x": np.nan}), "must be finite"),
    ],
)
def test_invalid_result_of_a_host_fails_its_world_and_keeps_the_host(served: Any, result: Result, why: str) -> None:
    with words(served.address) as host:
        host.hello()
        begin(served, host)
        served.step(ALL[:1], np.array([Act.GO_ON]))
        served.wait(0.0)
        host.commands()
        host.say(result)
        assert why in text_of(served)
        served.reset(ALL[:1])
        served.wait(1.0)
        assert not host.commands()[0].actions


def test_a_result_that_nobody_asked_for_ends_the_stream(served: Any) -> None:
    with words(served.address) as host:
        host.hello()
        begin(served, host)
        host.say(Result(obs=obs_of(), codec=NONE))
        assert "was not asked for anything" in text_of(served)


def test_results_behind_the_message_for_which_a_host_is_cut_off_change_nothing(served: Any) -> None:
    with words(served.address) as host:
        host.hello()
        begin(served, host)
        served.step(ALL[:1], np.array([Act.GO_ON]))
        served.wait(0.0)
        host.say(Result(world=1))
        host.say(Result(obs=obs_of(5.0), codec=NONE))
        wait_for(lambda: served.inbox.qsize() == 2)
        assert "there is no world 1" in text_of(served)
        assert len(served.wait(0.0).slots) == 0
        assert (served.obs["count"][0] == 1.0).all()


def test_a_host_that_floods_the_actor_leaves_no_thread(served: Any) -> None:
    with words(served.address) as host:
        host.hello()
        begin(served, host)
        for _ in range(100):
            host.say(Result(obs=obs_of(), codec=NONE))
        assert "was not asked for anything" in text_of(served)
        wait_for(lambda: "words" not in {thread.name for thread in threading.enumerate()})


def test_a_host_that_reads_no_commands_is_cut_off_and_leaves_no_thread() -> None:
    size = 2**16
    with asked({"shape": [1], "dtype": "uint8"}, {"shape": [size], "dtype": "uint8"}) as (pool, host):
        for _ in range(1_000):
            host.say(Result(obs=[b"0"], codec=NONE))
            ready = results(pool, {0})[0]
            if ready.failures:
                break
            pool.step(ALL[:1], np.zeros((1, size), np.uint8))
            pool.wait(0.0)
        assert "that have not been read" in ready.failures[0].text
        wait_for(lambda: pool.ended == 1)


def test_hosted_pool_cancels_a_caller_that_sends_nothing(served: Any) -> None:
    with words(served.address) as host, pytest.raises(grpc.RpcError) as end:
        next(host.answers)
    assert isinstance(end.value, grpc.Call) and end.value.code() == grpc.StatusCode.CANCELLED


def test_a_host_that_came_unnoticed_before_the_pool_closed_is_let_go(served: Any) -> None:
    link = served.join(Hello(name="late\n", worlds=1, wire_version=WIRE_VERSION), lambda: None)
    assert link.name == "late"
    served.close()
    sent = threading.Thread(target=lambda: list(link.responses()), daemon=True)
    sent.start()
    sent.join(TIMEOUT_S)
    assert not sent.is_alive()


def test_worlds_that_all_fail_again_and_again_end_the_actor_and_not_their_host(tmp_path: Path) -> None:
    pool = opened(ServedPool, tmp_path, max_consecutive_failures=1)
    try:
        with words(pool.address) as host:
            host.hello(2)
            pool.reset(ALL)
            pool.wait(0.0)
            next(host.answers)
            host.say(Result(failure="exception"), Result(world=1, failure="exception", text="no engine"))
            with pytest.raises(EnvGaveUpError, match=r"all 2 slots fail.*no engine"):
                results(pool, {0, 1})
    finally:
        pool.close()


def test_hosted_bool_bytes_that_are_neither_0_nor_1_fail_their_world() -> None:
    with asked({"shape": [2], "dtype": "bool"}, {"shape": [1], "dtype": "float32"}) as (pool, host):
        host.say(Result(obs=[b"\x01\x02"], codec=NONE))
        assert "must be of bytes 0 and 1" in text_of(pool)


def test_hosted_world_that_is_overdue_is_cut_off_unless_its_host_keeps_time(served: Any) -> None:
    with words(served.address) as host:
        host.hello(keeps_time=False)
        begin(served, host)
        served.step(ALL[:1], np.array([Act.GO_ON]))
        ready = results(served, {0})[0]
        assert (ready.kind[0], ready.failures[0].kind) == (Kind.FAILED, "hang")


@pytest.mark.parametrize(
    ("hello", "code"),
    [({"wire_version": 1}, grpc.StatusCode.FAILED_PRECONDITION), ({"worlds": 0}, grpc.StatusCode.INVALID_ARGUMENT)],
)
def test_a_host_that_does_not_fit_is_refused(served: Any, hello: dict[str, Any], code: grpc.StatusCode) -> None:
    with words(served.address) as host:
        host.hello(**hello)
        with pytest.raises(grpc.RpcError) as refusal:
            next(host.answers)
        assert isinstance(refusal.value, grpc.Call) and refusal.value.code() == code


def test_a_host_gets_the_slots_that_are_left_and_one_too_many_is_refused(served: Any) -> None:
    with words(served.address) as first, words(served.address) as second, words(served.address) as third:
        first.hello(1)
        assert next(first.answers).welcome.worlds == 1
        second.hello(5)
        assert next(second.answers).welcome.worlds == 1
        third.hello(1)
        with pytest.raises(grpc.RpcError, match="each of the 2 slots") as refusal:
            next(third.answers)
        assert isinstance(refusal.value, grpc.Call)
        assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def echo(address: str, random: Random, stopping: threading.Event) -> None:
    """Hosts, one after another, that show the number of each command, in any order, and go at any time."""
    while not stopping.is_set():
        with words(address) as host, suppress(grpc.RpcError, StopIteration):
            host.hello(random.randint(1, 3))
            next(host.answers)
            held: list[Result] = []
            for _ in range(random.randint(1, 60)):
                for command in host.commands():
                    number = np.frombuffer(command.actions[0], np.int64) if command.actions else np.int64(command.task)
                    held.append(Result(world=command.world, obs=[number.tobytes()], codec=NONE))
                random.shuffle(held)
                kept = random.choice([0, 0, len(held) // 2])
                if kept < len(held):
                    host.say(*held[kept:])
                    del held[kept:]


def test_every_observation_is_of_its_own_slot_and_command_whatever_hosts_come_and_go() -> None:
    number = {"kind": "box", "shape": [1], "dtype": "int64", "categories": [], "low": "-inf", "high": "inf"}
    schema = Schema.from_dict({"obs": {"": number}, "action": {"": number}})
    pool = ServedPool(EnvConfig(), schema, WorkerConfig(num_envs=5), seed=0, actor_index=0)
    pool.start()
    random, stopping, outcomes = Random(0), threading.Event(), Counter[int]()
    hosts = [threading.Thread(target=echo, args=(pool.address, Random(seed), stopping)) for seed in range(4)]
    for host in hosts:
        host.start()
    wanted = dict.fromkeys(range(5), 0)
    pool.reset(np.arange(5), task="0")
    try:
        for count in range(1, 4_000):
            ready = pool.wait(TIMEOUT_S)
            for slot, kind in zip(ready.slots.tolist(), ready.kind.tolist(), strict=True):
                outcomes[kind] += 1
                assert kind == Kind.FAILED or pool.obs[slot] == wanted[slot]
                wanted[slot] = 5 * count + slot
                if kind == Kind.FAILED or random.random() < 0.1:
                    pool.reset(np.array([slot]), task=str(wanted[slot]))
                else:
                    pool.step(np.array([slot]), np.array([[wanted[slot]]]))
        assert min(outcomes[kind] for kind in (Kind.RESET, Kind.STEP, Kind.FAILED)) > 50
    finally:
        stopping.set()
        pool.close()
        for host in hosts:
            host.join(TIMEOUT_S)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Result,
            world=st.integers(0, 2),
            obs=st.one_of(st.just([bytes(16)]), st.lists(st.binary(max_size=64), min_size=1, max_size=2)),
            codec=st.sampled_from([0, 1, 2, 3]),
            reward=st.floats(width=32),
            terminated=st.booleans(),
            truncated=st.booleans(),
            task=st.text(max_size=5),
            metrics=st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
            failure=st.sampled_from(["", "exit", "\0"]),
            frame=st.binary(max_size=5),
        ),
        max_size=3,
    )
)
def test_slots_stay_finite_and_another_host_can_play_whatever_a_host_sends(said: list[Result]) -> None:
    config = EnvConfig(id="CartPole-v1")
    pool = ServedPool(config, schema_of(make(config)), WorkerConfig(num_envs=2), seed=0, actor_index=0)
    pool.start()
    try:
        with words(pool.address) as host:
            host.hello(2)
            next(host.answers)
            pool.reset(ALL)
            pool.wait(0.0)
            host.commands()
            host.say(*said)
            assert len(pool.wait(TIMEOUT_S).slots)
        assert np.isfinite(pool.obs).all()
    finally:
        pool.close()


@pytest.mark.parametrize("packing", ["none", "halving"])
def test_hosted_arrays_travel_whole_whether_they_pack_well_or_not(packing: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    for picture in (noise, np.zeros((128, 128, 3), np.uint8)):
        arrays: list[Any] = [picture, np.float32(3.5), np.array([True, False])]
        codec, parts = pack_bytes(arrays, PACKINGS[packing])
        assert (codec != NONE) == (packing == "halving" and not picture.any())
        for array, part in zip(arrays, parts, strict=True):
            assert bytes(unpack_bytes("x", codec, part, array.nbytes)) == array.tobytes()
