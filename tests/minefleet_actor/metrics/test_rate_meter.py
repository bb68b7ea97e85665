from minefleet_actor.metrics.rate_meter import RateMeter


def test_rate_meter_shows_the_rate_of_the_last_seconds() -> None:
    now = [0.0]
    pace, count = RateMeter(lambda: now[0]), 0
    assert pace.of(0) == 0.0
    for per_second in [100] * 20 + [10] * 20:
        now[0] += 1.0
        count += per_second
        shown = pace.of(count)
    assert shown == 10.0
