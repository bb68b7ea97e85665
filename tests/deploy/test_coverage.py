"""Dashboards and alerts name metrics that there are, and all that there are."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from tests.deploy.committed import METRIC, ROOT, alerts, dashboards, queries

from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_learner.metrics.loop_timer import LoopTimer
from minefleet_learner.metrics.prometheus import LearnerMetrics
from minefleet_parameters.metrics import ParametersMetrics
from minefleet_replay.engine.metrics import ReplayMetrics, show_limits
from minefleet_replay.state.limits import Limits
from minefleet_runtime.metrics import DiskCollector, RpcMetrics, StateCollector, register_process
from minefleet_runtime.role_status import StatusTracker

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
"""Of what a family is exported as."""
UNPLOTTED = {
    "minefleet_learner_episode_failures": "minefleet_learner_episode_cut_share says more",
    "minefleet_replay_env_failures": "the actors say it themselves",
    "minefleet_replay_env_steps": "the actors say it themselves",
    "minefleet_replay_unaccounted_steps": "the fragments are, and an alert watches both",
    "minefleet_replay_epoch": "minefleet_parameters_epoch is the one that counts",
    "process_cpu_seconds": "minefleet_processor_seconds has the processes below it, too",
    "process_virtual_memory_bytes": "reserved, not used",
}
"""Exported, and on no dashboard."""


def replay(registry: CollectorRegistry) -> None:
    ReplayMetrics(registry)
    limits = Limits(
        steps_per_iteration=1,
        chunk_steps=1,
        max_steps=1,
        max_bytes=1,
        least_steps=1,
        max_reuse=1,
        max_staleness=1,
        grant_timeout_s=1.0,
    )
    show_limits(registry, lambda: limits)
    registry.register(DiskCollector("minefleet_replay", Path.cwd()))


def learner(registry: CollectorRegistry) -> None:
    LearnerMetrics(registry)
    registry.register(LoopTimer(1))


def actor(registry: CollectorRegistry) -> None:
    ActorMetrics(registry, "actor")


ROLES: dict[str, Callable[[CollectorRegistry], object]] = {
    "replay": replay,
    "parameters": ParametersMetrics,
    "learner": learner,
    "actor": actor,
}


def families(role: str) -> list[Metric]:
    """The metric families that a role exports."""
    registry = CollectorRegistry()
    register_process(registry, role)
    registry.register(StateCollector(StatusTracker()))
    registry.register(DiskCollector("minefleet_run", Path.cwd()))
    RpcMetrics(registry)
    ROLES[role](registry)
    return list(registry.collect())


def names(family: Metric) -> set[str]:
    """The metric's names in Prometheus."""
    return {family.name + suffix for suffix in SUFFIXES[family.type]}


def used() -> dict[str, str]:
    """Every metric that is named, and one place where it is."""
    found = {
        metric: place
        for board in dashboards().values()
        for place, query in queries(board)
        for metric in METRIC.findall(query)
    }
    return found | {metric: name for name, rule in alerts().items() for metric in METRIC.findall(rule["expr"])}


def plotted() -> set[str]:
    return {
        metric for board in dashboards().values() for _, query in queries(board) for metric in METRIC.findall(query)
    }


def test_metrics_named_by_dashboards_and_alerts_are_exported() -> None:
    exported = {name for role in ROLES for family in families(role) for name in names(family)}
    missing = {metric: place for metric, place in used().items() if metric not in exported}
    assert not missing


def test_every_metric_that_any_file_of_the_deployment_names_is_exported() -> None:
    exported = {name for role in ROLES for family in families(role) for name in names(family)}
    packages = {path.name for path in (ROOT / "services").iterdir()}
    for path in (ROOT / "deploy").rglob("*.y*ml"):
        assert set(METRIC.findall(path.read_text())) <= exported | packages, path


@pytest.mark.parametrize("role", ROLES)
def test_every_metric_that_is_exported_is_on_a_dashboard_or_said_not_to_be(role: str) -> None:
    on_dashboards = plotted()
    left_out = {family.name for family in families(role) if not names(family) & on_dashboards}
    assert left_out <= UNPLOTTED.keys()


def test_metrics_listed_as_on_no_dashboard_are_exported_and_on_none() -> None:
    exported = {family.name: family for role in ROLES for family in families(role)}
    for name in UNPLOTTED:
        assert not names(exported[name]) & plotted(), name
