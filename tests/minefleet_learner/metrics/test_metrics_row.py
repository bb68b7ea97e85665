"""The numbers of an iteration that depend on time."""

from minefleet_learner.metrics.metrics_row import WINDOW, Speedometer


def test_the_rate_is_unknown_until_a_second_iteration_and_then_that_of_a_window() -> None:
    now = [10.0]
    speed = Speedometer(clock=lambda: now[0])
    assert speed.pass_by(500) is None
    now[0] += 2.0
    assert speed.pass_by(700) == 100.0
    for iteration in range(WINDOW):
        now[0] += 1.0
        rate = speed.pass_by(700 + 50 * (iteration + 1))
    assert rate == 50.0
