import json
import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from minefleet.config.load import load
from minefleet.core.child_process_start import PYTHON
from minefleet.monitoring.journal import append
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.monitoring.plot import draw, make_figure
from minefleet.runs.run_yaml import Run


def write_rows(run: Run, count: int) -> None:
    rows: list[dict[str, Any]] = [
        {"env_steps": 100 * n, "episode_return_mean": None if n == 0 else float(n)}
        | ({"eval_return_mean": n + 0.5, "eval_policy_version": n // 20} if n >= 10 else {})
        for n in range(count)
    ]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"env_st')


def test_draw_writes_the_curve_as_a_picture_and_no_other_file(run: Run) -> None:
    write_rows(run, 50)
    before = set(run.directory.iterdir())
    place = draw(run)
    assert place == run.directory / "curve.png"
    with Image.open(place) as image:
        assert image.width > 600
    assert set(run.directory.iterdir()) - before == {place}


def test_draw_before_the_first_episode_returns_none(run: Run) -> None:
    assert draw(run) is None
    write_rows(run, 1)
    assert draw(run) is None


@pytest.mark.parametrize(("window", "label"), [(7, "the last 7 episodes"), (1, "the last 1 episode")])
def test_figure_of_rows_that_repeat_evaluations_marks_each_once_and_names_the_window(
    run: Run, window: int, label: str
) -> None:
    config = load("cartpole", [f"rollout_config.episode_statistics_config.window={window}"])
    write_rows(run, 50)
    append(run.directory, "rollback", {"env_steps": 700})
    (axes,) = make_figure(replace(run, config=config), read_rows(run.metrics)).axes
    training, evaluations, rollback = axes.lines
    assert (rollback.get_label(), rollback.get_xdata()) == ("rolled back", [700, 700])
    assert training.get_label() == f"training, mean of {label}"
    assert evaluations.get_xydata().tolist() == [[1000, 19.5], [2000, 39.5], [4000, 49.5]]


def test_plot_with_the_backend_of_a_notebook_draws_the_curve(run: Run) -> None:
    run.write()
    write_rows(run, 50)
    variables = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([*PYTHON, "minefleet.monitoring.plot", str(run.directory)], env=variables, check=True)
    assert (run.directory / "curve.png").exists()
