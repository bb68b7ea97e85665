import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from minefleet.cli.output.status_screen import render
from minefleet.config import EndpointConfig
from minefleet.config.security import SecurityConfig
from minefleet.core.errors import ConfigError
from minefleet.launch.ports import free_port
from minefleet.monitoring.status import ask, read_cards, read_status
from minefleet.rpc import certificates
from minefleet.rpc.credentials import NOTHING, Credentials, read_credentials
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2
from minefleet_runtime.grpc_server.serve import serving
from minefleet_runtime.role_context import RoleContext

ROW = {
    "iteration": 3,
    "env_steps": 1234,
    "trained_steps": 1000,
    "policy_version": 4,
    "episodes": 7,
    "episode_return_mean": None,
    "sps": 812.5,
    "learner_wait_ratio": 0.6,
}


@contextmanager
def replay_up(run: Run, credentials: Credentials = NOTHING) -> Iterator[RoleContext]:
    context = RoleContext(
        run=run,
        role=status_service_pb2.ROLE_REPLAY,
        name="replay",
        metrics_address="127.0.0.1:9",
        credentials=credentials,
    )
    with serving(context, "127.0.0.1:0"):
        yield context


@contextmanager
def learner_up(run: Run) -> Iterator[RoleContext]:
    context = RoleContext(run=run, role=status_service_pb2.ROLE_LEARNER, name="learner", metrics_address="127.0.0.1:9")
    with serving(context, "127.0.0.1:0"):
        yield context


def shown(run: Run) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render(read_status(run.directory)))
    return captured.get()


def test_status_shows_what_each_running_role_answers(run: Run) -> None:
    with replay_up(run) as context:
        context.status.set_run("run-7")
        context.status.set_state(status_service_pb2.STATE_PAUSED, "no room")
        context.status.set_stats({"live_steps": 12.0})
        (role,) = read_status(run.directory).roles
        text = shown(run)
    assert (role.name, role.state, role.detail, role.run_id) == ("replay", "paused", "no room", "run-7")
    assert role.stats == {"live_steps": 12.0}
    assert "paused: no room" in text and "steps held 12" in text


def test_status_of_a_paused_learner_says_why_and_blames_no_stage_for_it(run: Run) -> None:
    context = RoleContext(run=run, role=status_service_pb2.ROLE_LEARNER, name="learner", metrics_address="127.0.0.1:9")
    with serving(context, "127.0.0.1:0"):
        context.status.set_stats({"slot_seconds.weights": 9.0, "loop_seconds.training": 1.0})
        context.status.set_state(status_service_pb2.STATE_RUNNING)
        assert read_status(run.directory).bottleneck is not None
        context.status.set_state(status_service_pb2.STATE_PAUSED, "the entropy fell")
        assert read_status(run.directory).bottleneck is None
        assert "training is paused: the entropy fell" in shown(run)


def test_status_of_a_role_that_was_killed_is_one_short_line(run: Run) -> None:
    with replay_up(run):
        card = run.directory / "roles" / "replay.json"
        left = json.loads(card.read_text())
    (role,) = read_status(run.directory).roles
    assert (role.state, role.detail) == ("unreachable", "")
    with subprocess.Popen(["true"]) as ended:
        pass
    card.write_text(json.dumps({**left, "pid": ended.pid}))
    (role,) = read_status(run.directory).roles
    assert (role.state, role.detail) == ("gone", f"process {ended.pid} has ended")
    card.write_text(json.dumps({**left, "pid": ended.pid, "address": ""}))
    assert read_status(run.directory).roles[0].state == "gone"
    assert sum("replay" in line for line in shown(run).splitlines()) == 1


def test_status_of_a_role_that_tls_refuses_says_why(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        certificates.init(tmp_path / name)
    ours, others = (SecurityConfig(certificates=str(tmp_path / name)) for name in ("a", "b"))
    operator = read_credentials(ours, "operator")
    for served, reason in (
        (read_credentials(ours, "replay"), ""),
        (read_credentials(others, "replay"), "another authority"),
        (read_credentials(ours, "actor"), "another role's"),
        (Credentials(), "speaks no TLS"),
    ):
        with replay_up(run, served):
            (role,) = (ask(card, operator) for card in read_cards(run.directory))
        assert (reason in role.detail) and (role.state == "unreachable") is bool(reason)


def test_status_asks_services_of_other_machines_with_the_certificate_that_is_here(run: Run, tmp_path: Path) -> None:
    certificates.init(tmp_path / "all")
    shutil.copytree(tmp_path / "all" / "learner", tmp_path / "pod" / "learner")
    security, address = SecurityConfig(certificates=str(tmp_path / "pod")), f"127.7.7.7:{free_port('127.7.7.7')}"
    services = replace(run.config.services, replay=[EndpointConfig(address=address)], security=security)
    run = replace(run, config=replace(run.config, services=services))
    run.write()
    replay = read_credentials(SecurityConfig(certificates=str(tmp_path / "all")), "replay")
    elsewhere = replace(run, directory=tmp_path / "elsewhere")
    elsewhere.directory.mkdir()
    context = RoleContext(run=elsewhere, role=status_service_pb2.ROLE_REPLAY, name="replay", credentials=replay)
    with serving(context, address):
        (role,) = read_status(run.directory).roles
        assert (role.name, role.state, role.address) == ("replay", "starting", address)
    assert read_status(run.directory).roles[0].state == "unreachable"
    shutil.copytree(tmp_path / "all" / "actor", tmp_path / "pod" / "actor")
    with pytest.raises(ConfigError, match=r"cannot read .*operator"):
        read_status(run.directory)


def test_status_shows_numbers_in_one_order_and_in_units_that_people_read(run: Run) -> None:
    stats = {
        "payload_disk_bytes": 3 * 2**20,
        "oldest_lease_seconds": 90.0,
        "processor_seconds": 7200.0,
        "env_steps": 5.0,
    }
    with replay_up(run) as context:
        for names in (sorted(stats), sorted(stats, reverse=True)):
            context.status.set_stats({name: stats[name] for name in names})
            line = "env steps 5  oldest lease 1.5 min  on disk 3.0 MiB  processor time 2.0 h"
            assert line in shown(run)


def test_status_of_a_role_without_a_port_is_starting(run: Run) -> None:
    RoleContext(run=run, role=status_service_pb2.ROLE_ACTOR, name="actor-0").announce("")
    (role,) = read_status(run.directory).roles
    assert (role.name, role.state) == ("actor-0", "starting")


def test_status_shows_the_last_row_of_metrics(run: Run) -> None:
    run.metrics.write_text(json.dumps({**ROW, "iteration": 2}) + "\n" + json.dumps(ROW) + "\n")
    with replay_up(run):
        text = shown(run)
    assert "iteration 3  env steps 1,234  trained steps 1,000  version 4  episodes 7  speed 812/s" in text
    assert "hold" not in text


def test_status_shows_the_bottleneck_and_where_time_goes_also_as_json(run: Run) -> None:
    figures = {"slot_seconds.environment": 1.0, "slot_seconds.grant": 3.0, "loop_seconds.training": 9.0}
    with learner_up(run) as context:
        context.status.set_stats({**figures, "loop_seconds.fragments": 1.0})
        text, told = shown(run), json.loads(json.dumps(read_status(run.directory).to_dict()))["bottleneck"]
    assert "environment 25%" in text and "grant 75%" in text and "fragments 10%" in text
    assert "slot_seconds" not in text
    assert told["sentence"] in text
    assert (told["stage"], told["loop"]["training"], told["slots"]["grant"]) == ("learner", 0.9, 0.75)


def test_status_shows_failures_and_the_most_played_tasks(run: Run) -> None:
    tasks = {
        f"task-{number}": {"episodes": number, "return_mean": 1.5, "failures": 2, "cut_share": 0.25}
        for number in range(1, 11)
    }
    failures = {"episode_failures": 3, "episode_failures_by_kind": {"exit": 1, "hang": 2}, "episode_cut_share": 0.25}
    run.metrics.write_text(json.dumps({**ROW, **failures, "tasks": tasks}) + "\n")
    text = shown(run)
    assert "failed episodes 3  cut 25%  by kind: exit 1  hang 2" in text
    assert "logs/actor-*.log" in text
    assert "task task-10: episodes 10  return 1.50  failures 2  cut 25%" in text
    assert "task-2:" not in text and "and 2 more tasks, in metrics.jsonl" in text


def test_a_directory_without_a_run_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        read_status(tmp_path / "nowhere")


def test_status_shows_shares_of_the_steps_and_what_starves(run: Run) -> None:
    share = {"played_share": 0.5, "trained_share": 0.125}
    stream = {"stream": "a-3", "played_steps": 90, "trained_steps": 3, "dropped_steps": {"stale": 80}}
    steps = {
        "step_shares": {"": share, "slow": share},
        "step_warnings": {"starved: slow": "task 'slow' is hardly trained on"},
        "starved_streams": [stream],
    }
    run.metrics.write_text(json.dumps({**ROW, **steps}) + "\n")
    text = shown(run)
    assert "steps of slow: played 50%  trained 12%" in text
    assert "task 'slow' is hardly trained on" in text
    assert "stream a-3" in text and "3 of 90 steps trained on" in text
