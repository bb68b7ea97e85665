"""Groups of runs against medians and interquartile means worked out by hand."""

import json
from pathlib import Path

import pytest

from minefleet.config import EnvConfig, FleetConfig, TrainConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.monitoring.run_comparison import compare
from minefleet.runs.run_yaml import Run

RETURN = "episode_return_mean"


def write_run(
    directory: Path, seed: int, rate: float, returns: dict[int, float | None], kwargs: dict[str, float] | None = None
) -> None:
    """A run whose metrics have these returns, by environment steps."""
    directory.mkdir(parents=True)
    train = TrainConfig(learning_rate=rate)
    config = FleetConfig(seed=seed, env=EnvConfig(id="CartPole-v1", kwargs=kwargs or {}), train_config=train)
    Run(directory=directory, config=config, schema=Schema(obs={}, action={}), architecture="").write()
    rows = [{"env_steps": steps, RETURN: value} for steps, value in returns.items()]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_compare_of_two_rates_groups_their_seeds_and_orders_by_median(tmp_path: Path) -> None:
    for seed, value in enumerate([1.0, 2.0, 3.0, 4.0, 50.0]):
        write_run(tmp_path / f"low-{seed}", seed, 1e-4, {100: value})
        write_run(tmp_path / f"high-{seed}", seed, 1e-3, {100: 10 * value})
    best, other = compare([tmp_path], RETURN)
    assert [dict(best.differs), dict(other.differs)] == [
        {"train_config.learning_rate": 1e-3},
        {"train_config.learning_rate": 1e-4},
    ]
    assert (best.median, other.median) == (30.0, 3.0)
    assert best.iqm == pytest.approx(30.0) and other.iqm == pytest.approx(3.0)  # Of the middle three.
    assert len(best.runs) == len(other.runs) == 5
    assert best.median_interval and best.median_interval[0] < 30.0 < best.median_interval[1]
    assert compare([tmp_path], RETURN) == [best, other]


def test_compare_takes_each_run_at_the_last_step_that_all_have_reached(tmp_path: Path) -> None:
    write_run(tmp_path / "long", 0, 1e-3, {100: 5.0, 200: 7.0, 300: 9.0})
    write_run(tmp_path / "short", 1, 1e-4, {100: None, 210: 6.0})
    assert [(result.median, result.env_steps) for result in compare([tmp_path], RETURN)] == [(7.0, 210), (6.0, 210)]
    (first,) = compare([tmp_path / "long"], RETURN, env_steps=150)
    assert first.median == 5.0


def test_compare_at_a_step_that_a_run_has_not_reached_leaves_it_out(tmp_path: Path) -> None:
    write_run(tmp_path / "long", 0, 1e-3, {100: 5.0, 200: 7.0})
    write_run(tmp_path / "short", 1, 1e-3, {100: 50.0})
    (result,) = compare([tmp_path], RETURN, env_steps=200)
    assert (result.median, result.runs) == (7.0, [tmp_path / "long"])


def test_compare_of_runs_one_of_which_has_more_keys_names_them(tmp_path: Path) -> None:
    write_run(tmp_path / "0", 0, 1e-3, {100: 1.0}, {})
    write_run(tmp_path / "1", 0, 1e-3, {100: 2.0}, {"wind": 3})
    write_run(tmp_path / "2", 0, 1e-3, {100: 3.0}, {"wind": 3, "gravity": -9.8})
    found = [{key: value for key, value in result.differs.items() if value} for result in compare([tmp_path], RETURN)]
    assert found == [{"env.kwargs.wind": 3, "env.kwargs.gravity": -9.8}, {"env.kwargs.wind": 3}, {}]


def test_compare_of_a_run_that_is_named_twice_counts_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", 0, 1e-3, {100: 1.0})
    monkeypatch.chdir(tmp_path)
    (result,) = compare([Path("run"), tmp_path / "run", tmp_path], RETURN)
    assert len(result.runs) == 1


def test_compare_of_fewer_than_three_seeds_has_no_interval(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / str(seed), seed, 1e-3, {100: 1.0})
    (result,) = compare([tmp_path], RETURN)
    assert result.median_interval is None and result.iqm_interval is None and not result.differs


def test_compare_without_a_run_or_a_value_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        compare([tmp_path], RETURN)
    write_run(tmp_path / "one", 0, 1e-3, {100: 1.0})
    with pytest.raises(ConfigError, match="has eval_return_mean in its metrics"):
        compare([tmp_path], "eval_return_mean")
    with pytest.raises(ConfigError, match="at 50 environment steps"):
        compare([tmp_path], RETURN, env_steps=50)
