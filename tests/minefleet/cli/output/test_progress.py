import io
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minefleet.cli.output.progress import Progress, sparkline, time_left_s
from minefleet.config import StopConfig
from minefleet.config.load import load
from minefleet.core.schema import Schema
from minefleet.monitoring import journal
from minefleet.monitoring.learner_requests_in_journal import PAUSE, SET, ask
from minefleet.runs.run_yaml import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(
        directory=tmp_path,
        config=load("cartpole", ["stop.env_steps=10000"]),
        schema=Schema(obs={}, action={}),
        architecture="",
    )


def row(iteration: int, **changes: object) -> dict[str, Any]:
    numbers = {
        "iteration": iteration,
        "env_steps": 100 * iteration,
        "sps": 50.0,
        "episode_return_mean": 21.5,
        "policy_version": iteration + 1,
        "staleness_mean": 0.25,
        "wall_s": 2.0 * iteration,
        "episode_metrics": {},
    }
    return numbers | changes


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def lines(
    run: Run, steps: Sequence[Mapping[str, Any]], seconds: float, *, terminal: bool = False, width: int = 200
) -> str:
    """The lines on a console of a run whose rows come `seconds` apart."""
    output, now = io.StringIO(), [0.0]
    console = Console(file=output, force_terminal=terminal, width=width)
    with Progress(run, console, clock=lambda: now[0]) as progress:
        progress.tick("replay")
        for step in steps:
            now[0] += seconds
            append(run.metrics, step)
            progress.tick("replay, learner")
    return output.getvalue()


def test_progress_prints_a_line_at_once_then_with_the_first_figures_then_every_few_seconds(run: Run) -> None:
    shown = lines(run, [row(n) for n in range(1, 11)], 1.0).splitlines()
    assert shown[0] == "[0:00]  up replay  waiting for the first iteration"
    assert shown[1].startswith("[0:01]  env steps 100 of 10,000  steps/s 50  return 21.50  version 2  staleness 0.25")
    assert shown[2].startswith("[0:06]  env steps 600 of 10,000")
    assert len(shown) == 4


def test_progress_line_without_a_step_bound_shows_the_bound_of_iterations(run: Run) -> None:
    config = replace(run.config, stop=StopConfig(env_steps=0))
    endless = replace(run, config=config)
    bound = f"{config.train_config.num_iterations:,}"
    assert f"env steps 300 (iteration 3 of {bound})  steps/s" in lines(endless, [row(3)], 5.0)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_says_that_training_is_paused_and_that_it_goes_on(run: Run, terminal: bool) -> None:
    output = io.StringIO()
    with Progress(run, Console(file=output, force_terminal=terminal, width=200), clock=lambda: 0.0) as progress:
        journal.append(run.directory, "start", {}, learner="one")
        append(run.metrics, row(1), row(2))
        progress.tick("learner")
        assert "paused" not in output.getvalue() + progress.line("learner")
        journal.append(run.directory, PAUSE, {}, learner="one", id="pause", reason="the entropy fell")
        progress.tick("learner")
        assert (
            "paused, the policy has collapsed: the entropy fell; `minefleet rollback` steps back" in output.getvalue()
        )
        assert progress.line("learner").endswith("paused until a request")
        journal.append(run.directory, SET, {}, learner="one", id=ask(run.directory, set={"seed": 1}), keys=[])
        progress.tick("learner")
        assert "goes on after the pause" in output.getvalue() and " left " in progress.line("learner")


def test_an_achievement_is_named_the_first_time_it_is_reached(run: Run) -> None:
    before = {"achievement/collect_wood": 0.0, "success": 1.0}
    after = {"achievement/collect_wood": 0.01, "success": 1.0}
    steps = [row(n, episode_metrics=metrics) for n, metrics in enumerate([before, after, after], start=1)]
    assert lines(run, steps, 1.0).count("first collect_wood after 200 env steps") == 1


def test_an_achievement_of_an_earlier_launch_is_not_named_again(run: Run) -> None:
    reached = {"achievement/collect_wood": 0.5}
    append(run.metrics, row(1, episode_metrics=reached))
    assert "first" not in lines(run, [row(2, episode_metrics=reached)], 1.0).replace("first iteration", "")


def test_progress_line_before_the_first_episode_shows_a_dash_for_the_return(run: Run) -> None:
    assert "return -" in lines(run, [row(1, episode_return_mean=None)], 5.0)


def test_progress_line_after_one_iteration_shows_a_dash_for_the_rate(run: Run) -> None:
    assert "steps/s -" in lines(run, [row(1, sps=None)], 5.0)


def test_progress_line_shows_failures_once_there_are_any(run: Run) -> None:
    failing = row(2, episode_failures=1200, episode_cut_share=0.031)
    assert "failures" not in lines(run, [row(1, episode_failures=0, episode_cut_share=0.0)], 5.0)
    assert "failures 1,200 (cut 3%)" in lines(run, [failing], 5.0)


def test_progress_in_a_terminal_shows_every_figure(run: Run) -> None:
    view = lines(run, [row(1), row(2)], 1.0, terminal=True)
    assert all(word in view for word in ("env steps", "steps/s", "return", "version", "staleness", "left", "learner"))


def test_view_in_a_terminal_shows_best_evaluation_entropy_and_what_starves_in_80_columns(run: Run) -> None:
    shares = {"": {"played_share": 0.5, "trained_share": 0.5}, "slow": {"played_share": 0.5, "trained_share": 0.02}}
    starving = {"step_shares": shares, "step_warnings": {"starved: slow": "task 'slow' is hardly trained on"}}
    numbers = {"eval_return_mean": 30.0, "entropy": 0.612, "approx_kl": 0.0031, "episode_failures": 3}
    rows = [row(1, episode_return_mean=34.1), row(2, **numbers), row(3, **numbers, **starving)]
    view = lines(run, rows, 1.0, terminal=True, width=80)
    assert "best 34.10" in view and "evaluation 30.00" in view and "█▁▁" in view
    assert "entropy 0.61" in view and "KL 0.0031" in view
    assert "slow trained 2%, played 50%" in view
    assert "starved" not in view[: view.index("warning: task 'slow'")]
    plain = re.sub("\x1b\\[[?0-9;]*[a-zA-Z]", "", view)
    assert all(len(line) <= 78 for line in re.split("[\r\n]+", plain))


def test_progress_of_a_run_that_went_back_begins_anew_with_the_rows_of_its_file(run: Run) -> None:
    output, now = io.StringIO(), [0.0]
    with Progress(run, Console(file=output, force_terminal=True, width=200), clock=lambda: now[0]) as progress:
        undone = {"episode_return_mean": 30.0, "step_warnings": {"starved: slow": "hardly trained on"}}
        append(run.metrics, row(1), row(2, **undone), row(3), row(4, **undone), row(5), row(6, env_steps=9000))
        assert progress.tick("learner") and "left 0:00" not in progress.line("")
        run.metrics.write_text("")
        append(run.metrics, row(1), row(2, **undone), row(3, wall_s=20.0))
        assert not progress.tick("learner")
        assert progress.line("") == "[0:00]  up nothing yet  waiting for the first iteration"
        append(run.metrics, row(4, wall_s=22.0), row(5, wall_s=24.0))
        assert progress.tick("learner")
        assert (
            "env steps 500 of 10,000  steps/s 50  return 21.50  version 6  staleness 0.25  left 3:10"
            in progress.line("")
        )
    assert output.getvalue().count("warning: hardly trained on") == 2


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_progress_sees_that_a_run_went_back_though_its_file_has_grown_again(run: Run, rows: int) -> None:
    with Progress(run, Console(file=io.StringIO(), width=200)) as progress:
        append(run.metrics, row(1), row(2, episode_return_mean=30.0))
        progress.tick("learner")
        run.metrics.write_text("")
        append(run.metrics, row(1), *(row(2 + n, wall_s=9.0 + n) for n in range(rows)))
        assert not progress.tick("learner")
        append(run.metrics, row(9))
        assert progress.tick("learner") and "return 21.50  version 10" in progress.line("")


def test_sparkline_scales_from_least_to_most_and_takes_means_of_neighbours() -> None:
    assert sparkline([]) == ""
    assert sparkline([5.0]) == "▁"
    assert sparkline([0.0, 7.0, 3.5]) == "▁█▅"
    assert sparkline([0.0, 0.0, 7.0, 7.0, 0.0, 14.0], width=3) == "▁██"


@pytest.mark.parametrize(
    ("stop", "left_s"),
    [
        (StopConfig(), (4000 - 3) * 2.0),
        (StopConfig(env_steps=1000), (1000 - 300) / 50.0),
        (StopConfig(minutes=1.0), 60.0 - 7.0),
        (StopConfig(env_steps=1000, minutes=0.2), 5.0),
        (StopConfig(env_steps=100), 0.0),
    ],
)
def test_time_left_is_that_of_the_nearest_stop_condition(run: Run, stop: StopConfig, left_s: float) -> None:
    config = replace(run.config, stop=stop)
    assert time_left_s(config, deque([row(1), row(3)]), 7.0) == pytest.approx(left_s)


def test_time_left_from_one_row_is_unknown(run: Run) -> None:
    assert time_left_s(run.config, deque([row(1)]), 7.0) is None


def test_fraction_done_is_that_of_the_nearest_stop_condition(run: Run) -> None:
    assert run.config.fraction_done(50, 5000, 7.0) == pytest.approx(0.5)
    assert run.config.fraction_done(200, 20_000, 7.0) == 1.0


def test_progress_names_a_starved_task_once_and_again_when_it_starves_anew(run: Run) -> None:
    starving = {"step_warnings": {"starved: slow": "task 'slow' is hardly trained on"}}
    rows = [row(1), row(2, **starving), row(3, **starving), row(4), row(5, **starving)]
    assert lines(run, rows, 1.0).count("warning: task 'slow' is hardly trained on") == 2
