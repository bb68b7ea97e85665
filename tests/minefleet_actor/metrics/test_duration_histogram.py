import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from minefleet_actor.metrics.duration_histogram import DurationHistogram

BOUNDS_S = (0.1, 0.5, 2.0)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5, 1.0, 2.0, 7.0]))))
def test_duration_histogram_has_the_samples_of_prometheus_own(batches: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    durations, histogram = (
        DurationHistogram("step_seconds", "Steps.", BOUNDS_S),
        Histogram("step_seconds", "Steps.", buckets=BOUNDS_S, registry=theirs),
    )
    ours.register(durations)
    for batch in batches:
        durations.observe(np.array(batch, np.float64))
        for value in batch:
            histogram.observe(value)
    assert samples(ours) == samples(theirs)


def samples(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#") and "_created" not in line)
    return {name: round(float(value), 6) for name, _, value in pairs}
