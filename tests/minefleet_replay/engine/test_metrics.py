from typing import Any, get_args

from prometheus_client import CollectorRegistry

from minefleet.rpc.replay_types import Outcome
from minefleet_replay.engine.metrics import ReplayMetrics, show_limits
from minefleet_replay.state.ledger_totals import BUCKETS, Ledger, Reason


def test_counters_with_labels_start_at_zero() -> None:
    registry = CollectorRegistry()
    ReplayMetrics(registry)

    def start(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"minefleet_replay_{name}_total", labels)

    assert all(start("appended_fragments", outcome=outcome) == 0 for outcome in get_args(Outcome))
    assert all(start("dropped_fragments", reason=reason) == 0 for reason in get_args(Reason))
    assert all(start("reserved_chunks", granted=granted) == 0 for granted in ("true", "false"))
    assert start("refused_calls", reason="runmismatch") == start("refused_calls", reason="overloaded") == 0


def test_replay_metrics_show_the_limits_of_the_run(make_world: Any) -> None:
    registry = CollectorRegistry()
    limits = make_world(max_reuse=3, max_staleness=2, max_bytes=2**26).limits
    show_limits(registry, lambda: limits)
    names = ("max_reuse_uses", "max_staleness_versions", "max_bytes")
    assert [registry.get_sample_value(f"minefleet_replay_{name}") for name in names] == [3, 2, 2**26]


def test_replay_metrics_count_fragments_in_no_bucket_or_in_two() -> None:
    ledger = Ledger()
    for bucket in BUCKETS:
        ledger = ledger.added(bucket, 1)
    for account in ledger:
        assert account.unaccounted == 0
        assert account._replace(live=0).unaccounted == 1
        assert account._replace(trained=3).unaccounted == -2
    assert not ledger._replace(steps=ledger.steps._replace(live=0)).is_balanced


def test_replay_metrics_show_the_ledger_and_what_it_does_not_account_for(make_world: Any) -> None:
    world, registry = make_world(), CollectorRegistry()
    metrics = ReplayMetrics(registry)
    world.append("s", 0)
    figures = world.replay.stats()
    metrics.show(figures)
    assert registry.get_sample_value("minefleet_replay_ledger_fragments", {"bucket": "live"}) == 1
    assert registry.get_sample_value("minefleet_replay_unaccounted_fragments") == 0
