"""The time of the learner's loop is accounted for, by a clock that is passed in."""

from prometheus_client import CollectorRegistry

from minefleet_learner.metrics.loop_timer import LoopTimer


def test_loop_timer_charges_waits_to_what_feed_and_backlog_say() -> None:
    now = [0.0]
    time = LoopTimer(1, lambda: now[0])

    def pass_s(seconds: float) -> None:
        now[0] += seconds

    pass_s(100.0)
    time.waits()
    pass_s(100.0)  # Before the first fragments nothing counts.
    time.trains()
    time.waits()
    pass_s(1.0)
    with time.reading():
        pass_s(2.0)
    time.trains()
    with time.reading():  # Ahead of the next iteration.
        pass_s(4.0)
    with time.waiting_for_publish():
        pass_s(8.0)
    time.trained()
    time.waits()
    pass_s(16.0)  # One version that is not out: fragments may be one version old.
    time.trained()
    pass_s(32.0)
    assert time.seconds()["weights"] == 32.0, "while the wait goes on"
    time.published()
    pass_s(64.0)
    assert time.seconds() == {"training": 4.0, "fragments": 81.0, "replay": 2.0, "weights": 32.0, "blocked": 8.0}


def test_loop_timer_exports_a_stall_while_it_lasts() -> None:
    now, registry = [0.0], CollectorRegistry()
    time = LoopTimer(1, lambda: now[0])
    registry.register(time)
    assert not any(time.shares().values())
    time.trains()
    for _ in range(2):
        time.trained()
    time.waits()
    now[0] += 1000.0
    assert time.shares()["weights"] == 1.0
    assert time.stats()["loop_seconds.weights"] == 1000.0
    assert registry.get_sample_value("minefleet_learner_loop_seconds_total", {"spent_on": "weights"}) == 1000.0
