import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.config import EpisodeStatisticsConfig
from minefleet.config.load import load
from minefleet.core import crafter_score
from minefleet.core.errors import ConfigError
from minefleet.v1.episode_pb2 import EpisodeRecord
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics


def filled(count: int) -> EpisodeStatistics:
    statistics = EpisodeStatistics()
    for number in range(count):
        statistics.add(EpisodeRecord(episode_return=number, length=2 * number, metrics={"success": number % 2}))
    return statistics


def test_episode_statistics_before_the_first_episode_have_means_of_none() -> None:
    summary = EpisodeStatistics().summary()
    assert summary["episodes"] == 0
    assert summary["episode_return_mean"] is None
    assert summary["episode_length_mean"] is None


def test_episode_statistics_means_are_over_the_last_hundred_and_the_count_over_all() -> None:
    summary = filled(150).summary()
    assert summary["episodes"] == 150
    assert summary["episode_return_mean"] == sum(range(50, 150)) / 100
    assert summary["episode_length_mean"] == sum(range(100, 300, 2)) / 100
    assert summary["episode_metrics"] == {"success": 0.5}


def test_episode_statistics_count_failures_and_leave_them_out_of_means() -> None:
    statistics = filled(2)
    statistics.add(EpisodeRecord(episode_return=1e9, length=1, failure="exit"))
    assert statistics.summary()["episode_failures"] == 1
    assert statistics.summary()["episode_return_mean"] == 0.5
    assert statistics.summary()["episodes"] == 2


def test_evaluations_are_kept_apart_and_the_newest_version_counts() -> None:
    statistics = filled(2)
    assert "eval_return_mean" not in statistics.summary()
    for version, result in ((3, 10.0), (7, 20.0), (7, 40.0), (3, 1000.0)):
        statistics.add(EpisodeRecord(episode_return=result, policy_version=version, evaluation=True))
    assert statistics.summary()["eval_return_mean"] == 30.0
    assert statistics.summary()["eval_policy_version"] == 7
    assert statistics.summary()["episode_return_mean"] == 0.5


def test_a_metric_that_some_episodes_lack_is_averaged_over_those_that_have_it() -> None:
    statistics = filled(2)
    statistics.add(EpisodeRecord(metrics={"rare": 3.0}))
    assert statistics.summary()["episode_metrics"] == {"rare": 3.0, "success": 0.5}


def test_episode_statistics_report_crafters_score() -> None:
    statistics = EpisodeStatistics()
    statistics.add(EpisodeRecord(metrics=dict.fromkeys(crafter_score.METRICS, 0.25)))
    assert statistics.summary()["crafter_score"] == pytest.approx(25.0)


def test_every_task_has_numbers_of_its_own_and_all_are_in_the_total() -> None:
    statistics = EpisodeStatistics()
    for task, result in (("hunt", 1.0), ("hunt", 3.0), ("mine", 10.0), ("", 2.0)):
        statistics.add(EpisodeRecord(task=task, episode_return=result, discounted_return=result / 2, length=4))
    statistics.add(EpisodeRecord(task="hunt", episode_return=-99.0, length=2, failure="hang"))
    summary = statistics.summary()
    assert (summary["episodes"], summary["episode_return_mean"], summary["episode_failures"]) == (4, 4.0, 1)
    assert list(summary["tasks"]) == ["hunt", "mine"]
    hunt = summary["tasks"]["hunt"]
    assert (hunt["episodes"], hunt["return_mean"], hunt["discounted_return_mean"]) == (2, 2.0, 1.0)
    assert (hunt["failures"], hunt["failures_by_kind"]) == (1, {"hang": 1})
    assert hunt["cut_share"] == pytest.approx(1 / 3)
    assert (hunt["cut_return_mean"], hunt["cut_length_mean"]) == (-99.0, 2.0)
    assert summary["tasks"]["mine"]["cut_share"] == 0.0


def test_episode_statistics_without_tasks_have_totals_only() -> None:
    assert "tasks" not in filled(3).summary()


def test_tasks_beyond_the_bound_are_summed_up_as_other() -> None:
    statistics = EpisodeStatistics(EpisodeStatisticsConfig(max_tasks=2))
    for number in range(9):
        statistics.add(EpisodeRecord(task=f"task-{number % 5}", episode_return=number))
    tasks = statistics.summary()["tasks"]
    assert {name: one["episodes"] for name, one in tasks.items()} == {"task-0": 2, "task-1": 2, "other": 5}


def test_kinds_of_failures_are_counted_and_bounded() -> None:
    statistics = EpisodeStatistics()
    for number in range(40):
        statistics.add(EpisodeRecord(failure=f"kind-{number}"))
    kinds = statistics.summary()["episode_failures_by_kind"]
    assert sum(kinds.values()) == 40
    assert len(kinds) == 17 and kinds["other"] == 24


def test_episode_statistics_window_is_the_configured_one() -> None:
    statistics = EpisodeStatistics(EpisodeStatisticsConfig(window=2))
    for result in (100.0, 1.0, 3.0):
        statistics.add(EpisodeRecord(episode_return=result))
    assert statistics.summary()["episode_return_mean"] == 2.0
    assert load("cartpole").rollout_config.episode_statistics_config == EpisodeStatisticsConfig()
    with pytest.raises(ConfigError, match=r"episode_statistics_config\.window must be >= 1, got 0"):
        load("cartpole", ["rollout_config.episode_statistics_config.window=0"])


def test_a_failure_before_the_first_step_cuts_no_episode() -> None:
    statistics = filled(1)
    statistics.add(EpisodeRecord(failure="exception"))
    summary = statistics.summary()
    assert (summary["episode_failures"], summary["episode_cut_share"]) == (1, 0.0)
    assert summary["episode_cut_length_mean"] is None


def test_statistics_of_an_old_checkpoint_go_on() -> None:
    old = {
        "finished": 7,
        "failures": 2,
        "returns": [1.0, 2.0],
        "lengths": [10, 20],
        "metrics": [{"luck": 1.0}],
        "evaluated_version": 5,
        "evaluation_returns": [4.0],
    }
    statistics = EpisodeStatistics(data=old)
    statistics.add(EpisodeRecord(episode_return=6.0, discounted_return=5.0, length=30, task="hunt"))
    summary = statistics.summary()
    assert (summary["episodes"], summary["episode_failures"], summary["eval_return_mean"]) == (8, 2, 4.0)
    assert (summary["episode_return_mean"], summary["episode_length_mean"]) == (3.0, 20.0)
    assert summary["episode_discounted_return_mean"] == 5.0


RECORDS = st.builds(
    EpisodeRecord,
    task=st.sampled_from(["", "hunt", "mine", "other"]),
    episode_return=st.floats(-9, 9),
    length=st.integers(0, 50),
    failure=st.sampled_from(["", "", "hang", "exit"]),
    evaluation=st.booleans(),
)


@given(st.lists(RECORDS, max_size=60), st.integers(0, 60))
def test_statistics_that_go_on_from_a_checkpoint_are_those_that_never_stopped(
    records: list[EpisodeRecord], at: int
) -> None:
    config = EpisodeStatisticsConfig(window=5, max_tasks=1)
    through, before = EpisodeStatistics(config), EpisodeStatistics(config)
    for record in records:
        through.add(record)
    for record in records[:at]:
        before.add(record)
    after = EpisodeStatistics(config, json.loads(json.dumps(before.to_dict())))
    for record in records[at:]:
        after.add(record)
    assert after.summary() == through.summary()


def test_episode_statistics_survive_json() -> None:
    statistics = filled(120)
    statistics.add(EpisodeRecord(episode_return=4.0, policy_version=2, evaluation=True))
    copy = EpisodeStatistics(data=json.loads(json.dumps(statistics.to_dict())))
    assert copy.summary() == statistics.summary()
    copy.add(EpisodeRecord(episode_return=1.0))
    assert copy.summary()["episodes"] == 121
    assert EpisodeStatistics(data={}).summary() == EpisodeStatistics().summary()
