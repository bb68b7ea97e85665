"""Measures environments on hosts beside the same environments in an actor's own processes.

    python benchmarks/hosts.py small [--seconds 60]      64 environments of 50 ms, 84 x 84; two hosts, 2 ms of delay
    python benchmarks/hosts.py large [--seconds 3600]    72 engines of 55 ms, 224 x 224; two hosts; resets of 20 to
                                                         120 s, a crash in 3,600 s of each

A pool plays at random, without a policy: what is measured is the way of commands and results. Case `small`: steps/s on
hosts (ours) and in own processes (limit). Case `large`: frames/s on hosts (ours); the limit is what its engines could
do, or what a bare gRPC stream of the same messages carries on this machine, whichever is less.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import gymnasium
import numpy as np

from harness.report import line
from minefleet.config import EnvConfig, FleetConfig, RolloutConfig, WorkerConfig
from minefleet.envs import make, schema_of
from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.runs.run_yaml import to_dict
from minefleet.v1 import worlds_service_pb2_grpc
from minefleet_actor.env_hosts.env_host_dial_in import WorldsServicer
from minefleet_actor.pool import EnvPool, HostedPool, Kind, Pool
from minefleet_runtime.grpc_server.serve import SERVER_OPTIONS
from minefleet_runtime.process_setup import switch_threads_often

HOSTS = 2
DELAY_S = 0.002
LARGE: dict[str, Any] = {
    "edge": 224,
    "step_s": 0.055,
    "reset_s": [20.0, 120.0],
    "life_s": 3600.0,
    "episode_steps": 18_000,
}
"""Its episodes are as long as those of MineRL's ObtainDiamond."""
SMALL: dict[str, Any] = {"edge": 84, "step_s": 0.05, "episode_steps": 2000}
BARE_S = 10.0


class Engine(gymnasium.Env[Any, Any]):
    """Sleeps through its steps and resets, and ends its process after a random time."""

    action_space = gymnasium.spaces.Discrete(17)

    def __init__(
        self,
        edge: int,
        step_s: float,
        episode_steps: int,
        reset_s: tuple[float, float] = (0.0, 0.0),
        life_s: float = 0.0,
    ):
        self.observation_space = gymnasium.spaces.Box(0, 255, (edge, edge, 3), np.uint8)
        self._step_s, self._reset_s, self._episode_steps = step_s, reset_s, episode_steps
        self._frames = np.random.default_rng(0).integers(0, 256, (16, edge, edge, 3), np.uint8)
        self._dies_s = time.monotonic() + np.random.default_rng().exponential(life_s) if life_s else np.inf

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        time.sleep(self.np_random.uniform(*self._reset_s))
        self._steps = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        if time.monotonic() > self._dies_s:
            sys.exit(1)
        self._steps += 1
        return self._frames[self._steps % 16], 0.0, False, self._steps >= self._episode_steps, {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("small", "large"))
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    switch_threads_often()
    if arguments.case == "small":
        config = fleet_config(64, SMALL)
        own = [own_rate(config, arguments.seconds)]
        far = hosted_rate(config, arguments.seconds, DELAY_S)
        own.append(own_rate(config, arguments.seconds))
        print(f"own processes {own[0]:.0f} and {own[1]:.0f} steps/s, two hosts {far:.0f}")
        print(line("hosts", "small", "steps/s", far, limit=sum(own) / 2))
    else:
        config = fleet_config(72, LARGE)
        bare, far = bare_rate(LARGE["edge"]), hosted_rate(config, arguments.seconds, 0.0)
        engines = 72 / LARGE["step_s"]
        print(f"engines {engines:.0f} frames/s, a bare stream {bare:.0f}, two hosts {far:.0f}")
        print(line("hosts", "large", "frames/s", far, limit=min(bare, engines)))


def fleet_config(engines: int, kwargs: dict[str, Any]) -> FleetConfig:
    env = EnvConfig(generator=f"{Path(__file__).resolve()}:Engine", kwargs=kwargs)
    return FleetConfig(env=env, rollout_config=RolloutConfig(worker_config=WorkerConfig(num_envs=engines)))


def own_rate(config: FleetConfig, seconds: float) -> float:
    with closing(pool_of(EnvPool, config)) as pool:
        pool.start()
        return rate(pool, seconds)


def hosted_rate(config: FleetConfig, seconds: float, delay_s: float) -> float:
    with ExitStack() as stack:
        pool = stack.enter_context(closing(pool_of(HostedPool, config)))
        pool.start()
        address = stack.enter_context(serving(pool))
        if delay_s:
            address = stack.enter_context(delayed(address, delay_s))
        for _ in range(HOSTS):
            stack.enter_context(host(config, address))
        return rate(pool, seconds)


def pool_of(kind: Any, config: FleetConfig) -> Any:
    with closing(make(config.env)) as env:
        return kind(config.env, schema_of(env), config.rollout_config.worker_config, seed=0, actor_index=0)


@contextmanager
def serving(pool: HostedPool) -> Iterator[str]:
    servicer = WorldsServicer()
    servicer.pool = pool
    server = grpc.server(ThreadPoolExecutor(2 * HOSTS), options=SERVER_OPTIONS)
    worlds_service_pb2_grpc.add_WorldsServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    pool.close()
    server.stop(None).wait()


@contextmanager
def delayed(address: str, delay_s: float) -> Iterator[str]:
    """The address of a relay before another; it is a process, since a network takes no time of an actor's threads."""
    relay = [sys.executable, str(Path(__file__).parent / "harness" / "relay.py"), address, str(delay_s)]
    with subprocess.Popen(relay, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()


@contextmanager
def host(config: FleetConfig, address: str) -> Iterator[None]:
    rollout = config.rollout_config
    worker = replace(rollout.worker_config, num_envs=rollout.worker_config.num_envs // HOSTS)
    text = json.dumps(to_dict(replace(config, rollout_config=replace(rollout, worker_config=worker))))
    process = subprocess.Popen(
        [sys.executable, "-m", "minefleet_actor.env_hosts.remote_env_host", text, "--actor", address]
    )
    yield
    process.terminate()
    process.wait()


def rate(pool: Pool, seconds: float) -> float:
    """Steps per second, once every slot has taken its first step."""
    random, begun = np.random.default_rng(0), set[int]()
    pool.reset(np.arange(pool.num_slots))
    steps, began_s = 0, np.inf
    while time.monotonic() < began_s + seconds:
        ready = pool.wait(1.0)
        over = ready.terminated | ready.truncated | (ready.kind == Kind.FAILED)
        pool.reset(ready.slots[over])
        stepped = ready.slots[~over]
        pool.step(stepped, random.integers(17, size=len(stepped)))
        done = ready.slots[ready.kind == Kind.STEP]
        begun.update(done.tolist())
        if len(begun) == pool.num_slots and began_s == np.inf:
            steps, began_s = -len(done), time.monotonic()
        steps += len(done)
    return steps / (time.monotonic() - began_s)


def bare_rate(edge: int) -> float:
    """Frames per second that gRPC carries as bytes, seven in a message, from one process to another that drops them."""
    code = f"""
import grpc, sys
message = bytes(7 * {edge * edge * 3})
def said():
    while True:
        yield message
stub = grpc.insecure_channel(sys.argv[1], {CLIENT_OPTIONS!r}).stream_stream("/bare/Play")
for _ in stub(said()):
    pass
"""
    counted = [0, 0.0]

    def play(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        began_s = time.monotonic()
        for _ in requests:
            counted[0] += 7
            counted[1] = time.monotonic() - began_s
            if counted[1] > BARE_S:
                return
            yield b""

    handler = grpc.method_handlers_generic_handler("bare", {"Play": grpc.stream_stream_rpc_method_handler(play)})
    server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS, handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    subprocess.run([sys.executable, "-c", code, f"127.0.0.1:{port}"], check=False)
    server.stop(None).wait()
    return counted[0] / counted[1]


if __name__ == "__main__":
    main()
