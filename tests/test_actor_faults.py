"""An actor, and its steps in replay, survive when replay, the way to it or the actor itself stands still."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.proxy import Proxy
from tests.role_process import wait_for

from harness.faulty_fleet import FaultyFleet, env_steps, faulty_fleet, figure, vitals
from harness.replaying import Server
from minefleet.config import WorkerConfig

pytestmark = pytest.mark.fleet

SLOTS = 4
STEPS = 500
OVER_S = 1.0
FAULTS = {"exception": 0.002, "exit": 0.001, "nan_obs": 0.001, "reset_exception": 0.01}
RESET_BYTES = 20_000
TRIES = 4
"""To lose the answer to an upload: there may be none on its way where all slots wait for permits or resets."""


def test_actor_steps_are_stored_once_and_in_order_whatever_replay_and_its_link_do(tmp_path: Path) -> None:
    hurt_it_all(tmp_path, OVER_S)


def hurt_it_all(directory: Path, seconds: float) -> None:
    """Does to one actor all that can be done without killing it, each for so long; it goes on after each."""
    with fleet_behind(directory) as (fleet, proxy):
        with fleet.acting() as actor:
            act_on(actor)
            partition(actor, proxy, seconds)
            for _ in range(TRIES):
                lose_answers(actor, proxy, seconds)
                if duplicates(fleet):
                    break
            assert duplicates(fleet) > 0
            reset_uploads(actor, proxy)
            freeze_replay(actor, fleet, seconds)
            freeze_actor(actor, seconds)
            slow_down(actor, proxy)
        assert fleet.left_behind() == set()
        found = fleet.audit()
    assert found.faults == []
    assert "hang" not in found.failures
    assert found.steps >= 7 * STEPS


@contextmanager
def fleet_behind(directory: Path) -> Iterator[tuple[FaultyFleet, Proxy]]:
    """A fleet whose actors reach replay through a proxy."""
    worker = WorkerConfig(num_envs=SLOTS, max_consecutive_failures=50)
    with faulty_fleet(directory, FAULTS, worker, step_s=0.001) as fleet, Proxy(fleet.replay.address) as proxy:
        run, services = fleet.run, fleet.run.config.services
        behind = [replace(services.replay[0], address=proxy.address)]
        replace(run, config=replace(run.config, services=replace(services, replay=behind))).write()
        yield fleet, proxy


def act_on(actor: Server) -> None:
    """Waits until an actor has taken so many more steps."""
    wanted = env_steps(actor) + STEPS
    wait_for(lambda: env_steps(actor) >= wanted)


def pause(actor: Server, seconds: float) -> None:
    """Waits until an actor holds all its slots, and a while longer; its memory stays as it is."""
    wait_for(lambda: figure(actor, "minefleet_actor_blocked_slots") == SLOTS)
    steps, rss_bytes = env_steps(actor), vitals(actor.pid).rss_bytes
    threading.Event().wait(seconds)
    assert env_steps(actor) == steps
    assert vitals(actor.pid).rss_bytes < rss_bytes + 2**22


def partition(actor: Server, proxy: Proxy, seconds: float) -> None:
    proxy.hold("up", "down")
    pause(actor, seconds)
    proxy.resume()
    act_on(actor)


def lose_answers(actor: Server, proxy: Proxy, seconds: float) -> None:
    proxy.hold("down")
    pause(actor, seconds)
    proxy.reset()
    proxy.resume()
    act_on(actor)


def duplicates(fleet: FaultyFleet) -> float:
    return figure(fleet.replay, "minefleet_replay_appended_fragments_total", 'outcome="duplicate"')


def reset_uploads(actor: Server, proxy: Proxy) -> None:
    """Resets every connection in the middle of an upload."""
    proxy.reset_after_bytes = RESET_BYTES
    proxy.reset()
    act_on(actor)
    proxy.reset_after_bytes = 0
    act_on(actor)


def freeze_replay(actor: Server, fleet: FaultyFleet, seconds: float) -> None:
    os.kill(fleet.replay.pid, signal.SIGSTOP)
    try:
        pause(actor, seconds)
    finally:
        os.kill(fleet.replay.pid, signal.SIGCONT)
    act_on(actor)


def freeze_actor(actor: Server, seconds: float) -> None:
    os.kill(actor.pid, signal.SIGSTOP)
    actor.outlive(seconds)
    os.kill(actor.pid, signal.SIGCONT)
    act_on(actor)


def slow_down(actor: Server, proxy: Proxy) -> None:
    proxy.delay_s, proxy.bytes_per_s = 0.2, 1e6
    proxy.reset()
    act_on(actor)
