import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from minefleet.errors import ConfigError
from minefleet.limit import LoopShares, SlotShares, Verdict
from minefleet.run import Run
from minefleet.status import look, render
from minefleet.v1 import status_service_pb2
from minefleet_runtime.context import RoleContext
from minefleet_runtime.serve import serving

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
def replay_up(run: Run) -> Iterator[RoleContext]:
    context = RoleContext(run=run, role=status_service_pb2.ROLE_REPLAY, name="replay", metrics_address="127.0.0.1:9")
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
        console.print(render(look(run.directory)))
    return captured.get()


def test_every_role_that_is_up_is_asked(run: Run) -> None:
    with replay_up(run) as context:
        context.board.set_run("run-7")
        context.board.set(status_service_pb2.STATE_PAUSED, "no room")
        context.board.figure("live_fragments", 12.0)
        (role,) = look(run.directory).roles
        text = shown(run)
    assert (role.name, role.state, role.detail, role.run_id) == ("replay", "paused", "no room", "run-7")
    assert role.figures == {"live_fragments": 12.0}
    assert "paused: no room" in text and "live_fragments 12" in text


def test_a_role_that_was_killed_is_unreachable(run: Run) -> None:
    with replay_up(run):
        pass
    (role,) = look(run.directory).roles
    assert role.state == "unreachable" and role.detail


def test_a_role_without_a_port_is_starting(run: Run) -> None:
    RoleContext(run=run, role=status_service_pb2.ROLE_ACTOR, name="actor-0").announce("")
    (role,) = look(run.directory).roles
    assert (role.name, role.state) == ("actor-0", "starting")


def test_the_newest_numbers_and_what_limits_are_shown(run: Run) -> None:
    run.metrics.write_text(json.dumps({**ROW, "iteration": 2}) + "\n" + json.dumps(ROW) + "\n")
    with replay_up(run):
        text = shown(run)
    assert "iteration 3  env_steps 1,234" in text and "sps 812.50" in text
    assert "limit" not in text


def test_what_limits_is_shown_with_where_time_goes_and_told_as_json(run: Run) -> None:
    verdict = Verdict(
        slots=SlotShares(environment=0.25, grant=0.75), loop=LoopShares(training=0.9, fragments=0.1), learner_busy=0.99
    )
    with learner_up(run) as context:
        context.board.ask(verdict.figures)
        context.board.figure("processor_seconds", 3.0)
        text, told = shown(run), json.loads(json.dumps(look(run.directory).to_dict()))
    assert "environment 25%" in text and "grant 75%" in text and "fragments 10%" in text
    assert "slot_share" not in text
    assert "the learner limits: it trains 90% of its time, slots wait 75% of theirs for a grant" in text
    assert "all cores are busy (99%), on average so far" in text and "most by learner" in text
    assert (told["limit"]["stage"], told["limit"]["gain"]) == ("learner", 4.0)
    assert told["verdict"]["loop"]["training"] == 0.9
    assert told["advice"][0].startswith("the learner limits")


def test_failures_and_the_most_played_tasks_are_shown(run: Run) -> None:
    tasks = {
        f"task-{number}": {"episodes": number, "return_mean": 1.5, "failures": 2, "cut_share": 0.25}
        for number in range(1, 11)
    }
    failures = {"episode_failures": 3, "episode_failures_by_kind": {"exit": 1, "hang": 2}, "episode_cut_share": 0.25}
    run.metrics.write_text(json.dumps({**ROW, **failures, "tasks": tasks}) + "\n")
    text = shown(run)
    assert "episode_failures 3  episode_cut_share 0.25  by kind: exit 1  hang 2" in text
    assert "task task-10: episodes 10  return_mean 1.50  failures 2  cut_share 0.25" in text
    assert "task-2:" not in text and "and 2 more tasks, in metrics.jsonl" in text


def test_a_directory_without_a_run_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        look(tmp_path / "nowhere")
