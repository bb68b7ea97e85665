import json
import os
import subprocess
from pathlib import Path

from PIL import Image

from minefleet.core.subprocess_call import PYTHON
from minefleet.monitoring.plot import draw


def write_rows(directory: Path, count: int) -> None:
    rows = [
        {"env_steps": 100 * n, "episode_return_mean": None if n == 0 else float(n)}
        | ({"eval_return_mean": n + 0.5} if n % 10 == 0 else {})
        for n in range(count)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"env_st')


def test_the_curve_is_a_picture_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_rows(tmp_path, 50)
    place = draw(tmp_path)
    assert place == tmp_path / "curve.png"
    with Image.open(place) as image:
        assert image.width > 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "metrics.jsonl"]


def test_before_the_first_episode_there_is_no_curve(tmp_path: Path) -> None:
    assert draw(tmp_path) is None
    write_rows(tmp_path, 1)
    assert draw(tmp_path) is None


def test_plot_with_the_backend_of_a_notebook_draws_the_curve(tmp_path: Path) -> None:
    write_rows(tmp_path, 50)
    variables = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    subprocess.run([*PYTHON, "minefleet.monitoring.plot", str(tmp_path)], env=variables, check=True)
    assert (tmp_path / "curve.png").exists()
