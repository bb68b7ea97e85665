import math
import time

from prometheus_client import CollectorRegistry

from minefleet_learner.metrics.prometheus import GAUGES, LearnerMetrics


def test_learner_gauge_is_nan_until_its_first_value_and_then_keeps_the_last() -> None:
    registry = CollectorRegistry()
    metrics = LearnerMetrics(registry)

    def shown(name: str) -> float:
        value = registry.get_sample_value(f"minefleet_learner_{name}")
        assert value is not None
        return value

    assert all(math.isnan(shown(name)) for name in GAUGES)
    metrics.observe({"learner_wait_ratio": 0.25, "publish_blocked_s": 2.0, "eval_return_mean": None}, skipped_steps=3)
    metrics.observe({"entropy": 1.5}, skipped_steps=1)
    assert (shown("wait_ratio"), shown("publish_blocked_seconds"), shown("entropy")) == (0.25, 2.0, 1.5)
    assert math.isnan(shown("eval_return_mean"))
    assert shown("skipped_steps_total") == 4


def test_learner_metrics_have_the_time_of_the_last_checkpoint() -> None:
    registry = CollectorRegistry()
    metrics, name = LearnerMetrics(registry), "minefleet_learner_checkpoint_timestamp_seconds"
    assert registry.get_sample_value(name) == 0
    before = time.time()
    metrics.saved()
    saved_at = registry.get_sample_value(name)
    assert saved_at is not None and before <= saved_at <= time.time()
