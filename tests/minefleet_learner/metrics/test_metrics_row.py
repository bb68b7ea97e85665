"""The numbers of an iteration: their groups, and those that depend on time."""

import pytest

from minefleet.runs.checkpoint_files import CheckpointState
from minefleet_learner.data.prefetcher import LeaseInfo
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics
from minefleet_learner.metrics.metrics_row import WINDOW, IterationStats, Speedometer, make_row, tag
from minefleet_learner.training.schedules import Rates
from minefleet_learner.training.update_report import UpdateReport


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("episode_metrics/a/b", "episode/metrics/a/b"),
        ("eval_return_mean", "eval/return_mean"),
        ("policy_loss", "loss/policy_loss"),
        ("loop_share/training", "time/loop_share/training"),
        ("tasks/dig/episodes", "tasks/dig/episodes"),
    ],
)
def test_tag_puts_the_group_in_front_once(name: str, shown: str) -> None:
    assert tag(name) == shown


def test_tag_groups_every_number_of_a_row_but_the_counters() -> None:
    stats = IterationStats(
        lease=LeaseInfo(number=1, staleness=[], uses=[], new_steps=0),
        report=UpdateReport(),
        parity=Parity(),
        rates=Rates(learning_rate=1e-3, clip=0.2, rho=0.0, entropy=0.0, warming_up=False, renews_reference=False),
        learner_wait_ratio=0.0,
        publish_blocked_s=0.0,
    )
    state = CheckpointState(run_id="r")
    row = make_row(state=state, episodes=EpisodeStatistics(), stats=stats, sps=None, loop_share={}, shares={})
    assert [name for name in row if "/" not in tag(name)] == [
        "iteration",
        "env_steps",
        "trained_steps",
        "policy_version",
    ]


def test_speedometer_knows_no_rate_until_a_second_iteration_and_then_that_of_a_window() -> None:
    now = [10.0]
    speed = Speedometer(clock=lambda: now[0])
    assert speed.pass_by(500) is None
    now[0] += 2.0
    assert speed.pass_by(700) == 100.0
    for iteration in range(WINDOW):
        now[0] += 1.0
        rate = speed.pass_by(700 + 50 * (iteration + 1))
    assert rate == 50.0
