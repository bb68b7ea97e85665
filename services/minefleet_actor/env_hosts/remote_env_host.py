"""Runs environments for an actor elsewhere.

    python -m minefleet_actor.env_hosts.remote_env_host CONFIG --actor HOST:PORT        CONFIG is JSON

The environments run in the pool that an actor uses, with all of its supervision. They outlive a stream that breaks: the
next one finds them made. Exit codes are those of a role.
"""

import argparse
import json
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from minefleet.config import FleetConfig
from minefleet.config.field_validators import host_port
from minefleet.core.errors import ConfigError, DeadlineError, FleetError, UnavailableError
from minefleet.core.parent_death import die_with_launcher
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, flatten, unflatten
from minefleet.rpc.channel import connect
from minefleet.rpc.credentials import HOST, Credentials, read_credentials
from minefleet.rpc.handshake import WIRE_VERSION
from minefleet.rpc.retrier import Retrier, StoppedError
from minefleet.rpc.tensor_compression import PACKINGS, Packing, pack_bytes
from minefleet.runs.run_yaml import from_dict
from minefleet.v1 import status_service_pb2, worlds_service_pb2
from minefleet_actor.env_hosts.host_stream_to_actor import ActorStream
from minefleet_actor.metrics.env_host_metrics import HostMetrics
from minefleet_actor.pool import EnvPool, Failure, Ready
from minefleet_runtime.address_reachability import is_loopback
from minefleet_runtime.http_endpoint import probing
from minefleet_runtime.metrics import StateCollector
from minefleet_runtime.process_setup import set_up_logging, stop_on_signal, switch_threads_often
from minefleet_runtime.role_status import StatusTracker

logger = logging.getLogger(__name__)

WAIT_S = 1.0
REDIAL_S = 0.2
"""Pause after a stream, for an actor that ends every one at once."""

Command = worlds_service_pb2.Command
Result = worlds_service_pb2.Result


class WorldHost:
    """The environments of this process, and the streams over which an actor plays them, one after another."""

    def __init__(
        self, config: FleetConfig, actor: str, stopping: threading.Event, status: StatusTracker, metrics: HostMetrics
    ) -> None:
        if config.env.batched:
            raise ConfigError("env.batched: a host plays environments that step one by one")
        self._config = config
        self._actor = actor
        self._stopping = stopping
        self._status = status
        self._metrics = metrics
        self._worlds: Worlds | None = None

    def run(self) -> None:
        """Plays until asked to stop; looks for the actor again whenever it is away.

        Raises:
            FleetError: If the actor refuses this host, or no environment works.
        """
        credentials = read_credentials(self._config.services.security, HOST)
        peer = f"the actor at {self._actor}"
        retry = Retrier(peer=peer, stopping=self._stopping, report=self._status.set_waiting)
        try:
            while not self._stopping.is_set():
                stream, welcome = retry(lambda: self._dial(credentials))
                try:
                    self._play(stream, self._worlds_for(welcome))
                except (UnavailableError, DeadlineError) as error:
                    logger.warning("%s plays no longer: %s", peer, error)
                    self._status.set_waiting(f"{peer} plays no longer")
                finally:
                    self._metrics.worlds.set(0)
                    stream.close()
                self._stopping.wait(REDIAL_S)
        except StoppedError:
            pass
        finally:
            self._status.set_state(status_service_pb2.STATE_DRAINING)
            if self._worlds is not None:
                self._worlds.pool.close()

    def _dial(self, credentials: Credentials) -> tuple[ActorStream, worlds_service_pb2.Welcome]:
        """Opens a channel of its own: a channel in use never learns of actors that have joined its name since."""
        name = f"{socket.gethostname()}-{os.getpid()}"
        count = self._config.rollout_config.worker_config.num_envs
        hello = worlds_service_pb2.Hello(wire_version=WIRE_VERSION, name=name, worlds=count, keeps_time=True)
        stream = ActorStream(connect(self._actor, "actor", credentials, in_turn=True), hello)
        try:
            return stream, stream.welcome(self._stopping)
        except FleetError:
            stream.close()
            raise

    def _play(self, stream: ActorStream, worlds: "Worlds") -> None:
        """Plays over a stream until asked to stop. Raises `UnavailableError` when it ends before."""
        stream.wake = worlds.pool.wake
        while not self._stopping.is_set():
            stream.send(worlds.obey(stream.take()))
            ready = worlds.pool.wait(WAIT_S)
            self._metrics.count(len(ready.slots), ready.failures.values())
            stream.send(worlds.collect(ready))

    def _worlds_for(self, welcome: worlds_service_pb2.Welcome) -> "Worlds":
        """The worlds for a run's spaces: those that there are, where these are enough and as before."""
        if self._worlds is None or not self._worlds.fit(welcome):
            if self._worlds is not None:
                self._worlds.pool.close()
            is_near = is_loopback(self._actor.rpartition(":")[0])
            self._status.set_state(status_service_pb2.STATE_STARTING, "starting environments")
            self._worlds = Worlds(self._config, welcome, PACKINGS["none" if is_near else "halving"])
            self._worlds.pool.start()
        self._worlds.forget_commands()
        self._metrics.worlds.set(welcome.worlds)
        self._status.set_state(status_service_pb2.STATE_RUNNING, f"plays {welcome.worlds} worlds")
        logger.info("plays %d worlds for the actor at %s", welcome.worlds, self._actor)
        return self._worlds


class Worlds:
    """A pool of environments that does what an actor's messages say. World i is slot i."""

    def __init__(self, config: FleetConfig, welcome: worlds_service_pb2.Welcome, packing: Packing) -> None:
        self._welcome = welcome
        self._packing = packing
        schema = Schema.from_dict(json.loads(welcome.schema))
        worker = config.rollout_config.worker_config
        size = min(worker.envs_together, welcome.worlds)
        self._action_leaves = flatten(schema.action)
        self.pool = EnvPool(
            config.env,
            schema,
            replace(worker, num_envs=welcome.worlds, envs_per_process=size),
            gather_s=0.0,  # Results of some travel while others step.
            seed=secrets.randbits(31),
            actor_index=0,
            frame_shape=(welcome.frame_height, welcome.frame_width, 3) if welcome.frame_height else None,
            discount=welcome.discount,
        )
        self._busy = set[int]()
        """Worlds whose environments are at a command."""
        self._forgotten = set[int]()
        """Those among them whose command came over a stream that has broken."""
        self._waiting: dict[int, Command] = {}
        """Commands for worlds that are still at a forgotten one."""
        self._failed: dict[int, Failure] = {}
        """Worlds that have failed since their last result."""

    def fit(self, welcome: worlds_service_pb2.Welcome) -> bool:
        """Whether these worlds are as many as an actor wants, and show what it wants."""
        mine = self._welcome
        wanted = (welcome.schema, welcome.frame_height, welcome.frame_width, welcome.discount)
        shown = (mine.schema, mine.frame_height, mine.frame_width, mine.discount)
        return wanted == shown and welcome.worlds <= mine.worlds

    def forget_commands(self) -> None:
        """Begins with a new stream: nobody wants the results of earlier commands."""
        self._forgotten = set(self._busy)
        self._waiting.clear()

    def collect(self, ready: Ready) -> list[Result]:
        """The results of what the pool has done."""
        results = []
        for index, world in enumerate(ready.slots.tolist()):
            if world not in self._busy:
                self._failed[world] = ready.failures[world]
            elif world not in self._forgotten:
                results.append(self._result(ready, index, world))
            self._busy.discard(world)
            self._forgotten.discard(world)
        return results

    def obey(self, commands: Iterable[Command]) -> list[Result]:
        """Passes commands on to the pool; returns the results of steps of worlds that have failed meanwhile."""
        self._waiting.update({command.world: command for command in commands})
        due = [self._waiting.pop(world) for world in list(self._waiting) if world not in self._busy]
        failures = [(command.world, self._failed.pop(command.world, None)) for command in due]
        results = [
            Result(world=world, failure=failure.kind, text=failure.text)
            for command, (world, failure) in zip(due, failures, strict=True)
            if failure is not None and command.actions
        ]
        dead = {result.world for result in results}
        due = [command for command in due if command.world not in dead]
        for command in due:
            self.pool.film(command.world, command.film)
            if not command.actions:
                seed = command.seed if command.HasField("seed") else None
                self.pool.reset(_slots([command]), seed, command.task)
        if steps := [command for command in due if command.actions]:
            self.pool.step(_slots(steps), self._actions(steps))
        self._busy.update(command.world for command in due)
        return results

    def _actions(self, steps: Sequence[Command]) -> Tree:
        """The actions of commands, a tree of [len(steps), ...]."""
        leaves = {}
        for number, (path, leaf) in enumerate(self._action_leaves.items()):
            rows = [np.frombuffer(command.actions[number], leaf.dtype).reshape(leaf.shape) for command in steps]
            leaves[path] = np.stack(rows)
        return unflatten(leaves)

    def _result(self, ready: Ready, index: int, world: int) -> Result:
        ending = ready.endings.get(world)
        result = Result(world=world, task=ending.task if ending else ready.tasks.get(world, ""))
        if world in ready.failures:
            result.failure, result.text, _ = ready.failures[world]
            return result
        result.reward = float(ready.reward[index])
        if ready.duration[index] > 1:
            result.duration = int(ready.duration[index])
            result.discounted_reward = float(ready.discounted_reward[index])
        result.terminated, result.truncated = bool(ready.terminated[index]), bool(ready.truncated[index])
        if ending:
            result.metrics.update(ending.metrics)
        arrays = [leaf[world] for leaf in flatten(self.pool.obs).values()]
        if self.pool.frames.size and self.pool.is_filmed(world):
            arrays.append(self.pool.frames[world])
        result.codec, packed = pack_bytes(arrays, self._packing)
        obs = len(flatten(self.pool.obs))
        result.obs.extend(packed[:obs])
        result.frame = b"".join(packed[obs:])
        return result


def _slots(commands: Sequence[Command]) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.array([command.world for command in commands], np.intp)


def main() -> int:
    """Plays until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="minefleet host", description="Run environments for an actor elsewhere.")
    parser.add_argument("config", help="the whole configuration, JSON")
    parser.add_argument("--actor", required=True, metavar="HOST:PORT")
    parser.add_argument("--metrics-address", default="127.0.0.1:0", metavar="HOST:PORT")
    arguments = parser.parse_args()
    switch_threads_often()
    set_up_logging("host", "INFO")
    die_with_launcher()
    stopping = threading.Event()
    stop_on_signal(stopping)
    status, metrics = StatusTracker(), HostMetrics()
    metrics.registry.register(StateCollector(status))
    try:
        host_port("--actor", arguments.actor)
        host_port("--metrics-address", arguments.metrics_address)
        with probing(arguments.metrics_address, status, metrics.registry, "--metrics-address") as address:
            logger.info("metrics and probes are at %s", address)
            config = from_dict(json.loads(arguments.config))
            WorldHost(config, arguments.actor, stopping, status, metrics).run()
    except FleetError as error:
        logger.error("%s", error)
        return error.exit_code
    logger.info("host ends")
    return 0


if __name__ == "__main__":
    sys.exit(main())
