import json

import pytest

from minefleet import crafter_score
from minefleet.v1.episode_pb2 import EpisodeRecord
from minefleet_learner.episodes import EpisodeStatistics


def filled(count: int) -> EpisodeStatistics:
    statistics = EpisodeStatistics()
    for number in range(count):
        statistics.add(EpisodeRecord(episode_return=number, length=2 * number, metrics={"success": number % 2}))
    return statistics


def test_before_the_first_episode_the_means_are_none() -> None:
    summary = EpisodeStatistics().summary()
    assert summary["episodes"] == 0
    assert summary["episode_return_mean"] is None
    assert summary["episode_length_mean"] is None


def test_means_are_over_the_last_hundred_and_the_count_over_all() -> None:
    summary = filled(150).summary()
    assert summary["episodes"] == 150
    assert summary["episode_return_mean"] == sum(range(50, 150)) / 100
    assert summary["episode_length_mean"] == sum(range(100, 300, 2)) / 100
    assert summary["episode_metrics"] == {"success": 0.5}


def test_failures_are_counted_and_in_no_mean() -> None:
    statistics = filled(2)
    statistics.add(EpisodeRecord(episode_return=1e9, length=1, failure="crash"))
    assert statistics.summary()["episode_failures"] == 1
    assert statistics.summary()["episode_return_mean"] == 0.5
    assert statistics.finished == 2


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


def test_crafters_score_is_reported() -> None:
    statistics = EpisodeStatistics()
    statistics.add(EpisodeRecord(metrics=dict.fromkeys(crafter_score.METRICS, 0.25)))
    assert statistics.summary()["crafter_score"] == pytest.approx(25.0)


def test_statistics_survive_json() -> None:
    statistics = filled(120)
    statistics.add(EpisodeRecord(episode_return=4.0, policy_version=2, evaluation=True))
    copy = EpisodeStatistics.from_dict(json.loads(json.dumps(statistics.to_dict())))
    assert copy.summary() == statistics.summary()
    copy.add(EpisodeRecord(episode_return=1.0))
    assert len(copy.returns) == 100
    assert EpisodeStatistics.from_dict({}).summary() == EpisodeStatistics().summary()
