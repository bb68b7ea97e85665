import time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from minefleet_actor.metrics.prometheus import ActorMetrics


def test_totals_show_the_steps_per_second_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    metrics = ActorMetrics(CollectorRegistry(), "actor", 2)
    assert metrics.totals()["env_steps_per_s"] == 0.0
    metrics.stepped(np.array([0, 1, 1, 1]), np.full(4, 0.01))
    monkeypatch.setattr(time, "monotonic", lambda: 1008.0)
    assert metrics.totals()["env_steps_per_s"] == 0.5
