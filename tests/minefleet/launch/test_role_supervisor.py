import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minefleet.config.load import load
from minefleet.config.replay_partitioning import NUM_SHARDS, spread
from minefleet.core.schema import Schema
from minefleet.launch import machine, role_supervisor
from minefleet.launch.placement import ProcessPlacement
from minefleet.launch.role_process import RoleProcess
from minefleet.launch.role_supervisor import LaunchEnd, RoleSupervisor, supervisor
from minefleet.runs.run_yaml import Run

STAND_IN = Path(__file__).with_name("stand_in_role.py")
TIMEOUT_S = 60.0
GRACE_S = 30.0


class Fleet:
    """A supervisor over stand-in roles, and all that it says."""

    def __init__(self, directory: Path, grace_s: float, **lives: str) -> None:
        os.mkfifo(directory / "starts")
        # While nobody has a FIFO open, it forgets what was written.
        self.starts = os.open(directory / "starts", os.O_RDWR)
        (directory / "events").touch()
        self.directory = directory
        self.said: list[str] = []
        self.children = {name: stand_in(directory, name, plan) for name, plan in lives.items()}
        self.supervisor = RoleSupervisor(
            stages=[[child] for child in self.children.values()], grace_s=grace_s, report=self.said.append
        )

    def run(self) -> LaunchEnd:
        ending = self.supervisor.run()
        assert not any(child.is_alive for child in self.children.values())
        return ending

    @property
    def events(self) -> list[str]:
        return re.sub(r" as \d+", "", (self.directory / "events").read_text()).splitlines()

    def count(self, event: str) -> int:
        return self.events.count(event)


def stand_in(directory: Path, name: str, plan: str) -> RoleProcess:
    command = [sys.executable, str(STAND_IN), str(directory), name, plan]
    return RoleProcess(name, command, directory / f"{name}.log", first_delay_s=0.01)


MakeFleet = Callable[..., Fleet]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[MakeFleet]:
    made: list[Fleet] = []

    def make(grace_s: float = GRACE_S, **lives: str) -> Fleet:
        made.append(Fleet(tmp_path, grace_s, **lives))
        return made[-1]

    yield make
    for fleet in made:
        os.close(fleet.starts)


def test_the_run_is_over_when_the_learner_is_and_the_others_drain_in_order(fleet: MakeFleet) -> None:
    ring = fleet(learner="finish:3", actor="serve", replay="serve", parameters="serve")
    assert ring.run() == LaunchEnd(stopped_by="learner")
    drained = [event for event in ring.events if "asked to stop" in event]
    assert drained == [f"{name} is asked to stop" for name in ("actor", "replay", "parameters")]


def test_a_role_that_dies_is_started_again_and_named_with_its_last_words(fleet: MakeFleet) -> None:
    ring = fleet(learner="finish:3", actor="die,kill,serve")
    assert ring.run().stopped_by == "learner"
    assert ring.count("actor starts") == 3
    assert any("actor died (exit code 1)" in line and "last words of actor" in line for line in ring.said)
    assert any("actor died (killed by SIGKILL)" in line for line in ring.said)


def test_every_fast_death_doubles_the_delay_before_the_next_start(tmp_path: Path) -> None:
    child = RoleProcess("actor", [sys.executable, "-c", ""], tmp_path / "log", first_delay_s=0.5, clock=lambda: 100.0)
    delays = []
    for _ in range(9):
        child.start()
        child.reap()
        delays.append(child.put_off())
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert child.due_s == 130.0


def test_role_with_a_placement_runs_on_its_cores_and_sees_its_gpus(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    show = "print(os.environ['CUDA_VISIBLE_DEVICES'], os.sched_getaffinity(0))"
    command = [sys.executable, "-c", f"import os, signal; signal.sigwait([signal.SIGTERM]); {show}"]
    child = RoleProcess("actor", command, tmp_path / "log", place=ProcessPlacement(gpus=("5",), cores=(core,)))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.terminate()
    assert select.select([child.pidfd], [], [], TIMEOUT_S)[0]
    child.reap()
    assert (tmp_path / "log").read_text() == f"5 {{{core}}}\n"


def test_role_process_that_lives_long_forgets_its_fast_deaths(tmp_path: Path) -> None:
    now = [0.0]
    child = RoleProcess("actor", [sys.executable, "-c", ""], tmp_path / "log", clock=lambda: now[0])
    for lived_s in (1.0, 1.0, 1000.0):
        child.start()
        now[0] += lived_s
        child.reap()
    assert child.fast_deaths == 0


def test_a_role_that_keeps_dying_fast_ends_the_run_with_the_reason(fleet: MakeFleet) -> None:
    ring = fleet(learner="serve", actor="die", replay="serve")
    ending = ring.run()
    assert (ending.stopped_by, ending.is_config_error) == ("failure", False)
    assert "actor died" in ending.reason and "last words of actor" in ending.reason
    assert ring.count("actor starts") == 5


def test_learner_that_goes_back_is_started_again_with_its_ranks_however_often_and_has_not_died(
    fleet: MakeFleet,
) -> None:
    again = 2 * role_supervisor.FAST_DEATHS
    plan = {"learner": ",".join(["again"] * again + ["finish:1"]), "learner-1": "serve", "actor": "serve"}
    ring, restarts = fleet(**plan), list[str]()
    ring.supervisor.on_restart = lambda name, _: restarts.append(name)
    assert ring.run() == LaunchEnd(stopped_by="learner")
    assert ring.count("learner starts") == again + 1 and ring.count("actor starts") == 1
    assert not restarts and not any("died" in said for said in ring.said)
    assert sum("learner goes back to an older checkpoint" in said for said in ring.said) == again


def test_roles_that_die_of_a_full_disk_start_again_until_there_is_room_and_the_disk_is_named_once(
    fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(role_supervisor, "FULL_BYTES", 2**80)
    deaths = ",".join(["die"] * (role_supervisor.FAST_DEATHS + 2))
    ring = fleet(learner=f"finish:{role_supervisor.FAST_DEATHS + 3}", actor=f"{deaths},serve")
    assert ring.run().stopped_by == "learner"
    assert ring.count("actor starts") == role_supervisor.FAST_DEATHS + 3
    assert [line for line in ring.said if "disk" in line or "died" in line] == [
        f"the disk of {tmp_path} is full: roles that die of it start again until there is room"
    ]


def test_a_role_that_finds_its_configuration_wrong_ends_the_run_at_once(fleet: MakeFleet) -> None:
    ring = fleet(learner="serve", replay="config")
    ending = ring.run()
    assert ending.is_config_error
    assert "replay cannot work with this configuration" in ending.reason and "last words of replay" in ending.reason
    assert ring.count("replay starts") == 1


def test_ctrl_c_drains_the_learner_first(fleet: MakeFleet) -> None:
    ring = fleet(learner="serve", actor="serve", replay="serve")
    ring.supervisor.tick = lambda: signal_when_up(ring, signal.SIGINT)
    assert ring.run().stopped_by == "signal"
    drained = [event for event in ring.events if "asked to stop" in event]
    assert drained == [f"{name} is asked to stop" for name in ("learner", "actor", "replay")]


def test_a_second_ctrl_c_kills_at_once(fleet: MakeFleet) -> None:
    ring = fleet(grace_s=10 * TIMEOUT_S, learner="stubborn", replay="stubborn")
    ring.supervisor.tick = lambda: signal_when_up(ring, signal.SIGINT)
    assert ring.run().stopped_by == "signal"
    assert any("killing learner" in line for line in ring.said)


def test_two_signals_at_once_are_one_request_to_stop(fleet: MakeFleet) -> None:
    ring = fleet(learner="serve", replay="serve")

    def signal_twice() -> None:
        if sum("starts" in event for event in ring.events) == len(ring.children):
            ring.supervisor.tick = lambda: None
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    ring.supervisor.tick = signal_twice
    assert ring.run().stopped_by == "signal"
    assert not any("killing" in line for line in ring.said)


def signal_when_up(ring: Fleet, signum: int) -> None:
    if sum("starts" in event for event in ring.events) == len(ring.children):
        os.kill(os.getpid(), signum)


def test_a_role_that_does_not_drain_in_time_is_killed(fleet: MakeFleet) -> None:
    ring = fleet(grace_s=0.2, learner="finish:1", replay="stubborn")
    assert ring.run().stopped_by == "learner"
    assert "killing replay" in ring.said


def test_role_process_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "starts")
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from test_role_supervisor import stand_in; from minefleet.launch.role_supervisor import RoleSupervisor;"
        "child = stand_in(Path(sys.argv[2]), 'replay', 'serve');"
        "RoleSupervisor(stages=[[child]], grace_s=9, report=print).run()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(STAND_IN.parent), str(tmp_path)]) as supervisor:
        starts = os.open(tmp_path / "starts", os.O_RDWR)
        assert select.select([starts], [], [], TIMEOUT_S)[0]
        assert os.read(starts, 1) == b"."
        os.close(starts)
        found = re.search(r"as (\d+)", (tmp_path / "events").read_text())
        assert found is not None
        role = os.pidfd_open(int(found[1]))
        supervisor.kill()
        ended, _, _ = select.select([role], [], [], TIMEOUT_S)
        os.close(role)
    assert ended


def test_role_process_has_one_thread_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'])"
    child = RoleProcess("actor", [sys.executable, "-c", code], tmp_path / "log")
    child.start()
    select.select([child.pidfd], [], [], TIMEOUT_S)
    assert child.reap().last_words == "1 3"


def test_every_actor_and_every_shard_is_a_process_in_a_place_of_its_own(tmp_path: Path) -> None:
    settings = ["rollout_config.num_rollout_workers=3", f"{NUM_SHARDS}=2", "rollout_config.num_cpus_per_worker=64"]
    config = spread(load("cartpole", settings))
    run = Run(directory=tmp_path, config=config, schema=Schema(obs={}, action={}), architecture="")
    said: list[str] = []
    fleet = supervisor(run, report=said.append, tick=lambda: None)
    names = [[child.name for child in stage] for stage in fleet.stages]
    actors = ["actor-0", "actor-1", "actor-2"]
    assert names == [["learner"], actors, ["replay-0", "replay-1"], ["parameters"]]
    assert [child.command[-1] for child in fleet.stages[1]] == ["0", "1", "2"]
    assert len(said) == 1 and "num_cpus_per_worker=64: 192 cores for actors" in said[0]


@pytest.mark.parametrize("gpus", [0, 1])
def test_roles_are_tied_to_cores_only_where_no_gpu_is_at_hand(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    run = Run(directory=tmp_path, config=load("cartpole"), schema=Schema(obs={}, action={}), architecture="")
    learner, actor = (stage[0] for stage in supervisor(run, report=print).stages[:2])
    assert (learner._place.cores, actor._place.cores) == (((), ()) if gpus else ((0,), (1,)))
