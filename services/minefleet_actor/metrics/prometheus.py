"""Prometheus metrics of an actor."""

import threading
import time
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from minefleet.monitoring.bottleneck import SLOT_PREFIX
from minefleet.v1 import replay_service_pb2
from minefleet_actor.metrics.duration_histogram import DurationHistogram
from minefleet_actor.metrics.wait_time_breakdown import SlotTimer
from minefleet_env.process_messages import FAILURES
from minefleet_runtime.counter_window import Recent

RATE_WINDOW_S = 10.0
"""Seconds over which steps per second are taken."""
REASONS = {
    "grant": "no grant from replay",
    "room": "replay does not take what is queued",
    "weights": "the weights are too old for replay, and parameters gives no newer ones",
    "pace": "its steps take too long to be used before they are too stale, or newer weights would let it",
    "balance": "others are to have as many steps first",
}
"""Reasons for which a slot waits before it starts a fragment."""
STEP_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class SlotTimeCollector(Collector):
    """The time of slots by use, at the moment of the scrape."""

    def __init__(self, slot_time: SlotTimer) -> None:
        self._slot_time = slot_time

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One sample per kind."""
        family = CounterMetricFamily(
            "minefleet_actor_slot_seconds", "Time of all slots, by what they waited for.", labels=["waiting_for"]
        )
        for kind, seconds in self._slot_time.seconds().items():
            family.add_metric([kind], seconds)
        yield family


class ActorMetrics:
    """The actor's metrics, and its progress as replay receives it: each step counted at one shard."""

    def __init__(self, registry: CollectorRegistry, actor: str, shards: int = 1, slots: int = 0) -> None:
        self.version = Gauge("minefleet_actor_policy_version", "Version of the weights in use.", registry=registry)
        Gauge("minefleet_actor_slots", "Environments of this actor.", registry=registry).set(slots)
        self._blocked = Gauge(
            "minefleet_actor_blocked_slots", "Slots that wait, by what for.", ("reason",), registry=registry
        )
        self._queued = Gauge("minefleet_actor_queued_fragments", "Fragments that wait to be sent.", registry=registry)
        self._resetting = Gauge("minefleet_actor_resetting_slots", "Slots whose environment resets.", registry=registry)
        self._cooling_down = Gauge(
            "minefleet_actor_cooling_down_slots",
            "Slots whose environment failed too often in a row.",
            registry=registry,
        )
        self._steps = Counter("minefleet_actor_env_steps", "Environment steps taken.", registry=registry)
        self._failures = Counter(
            "minefleet_actor_env_failures",
            "Environments that failed and were replaced, by how.",
            ("kind",),
            registry=registry,
        )
        for kind in FAILURES:
            self._failures.labels(kind)
        for reason in REASONS:
            self._blocked.labels(reason)
        self._step_s = DurationHistogram(
            "minefleet_actor_env_step_seconds", "Time from a step's action until its answer was taken.", STEP_BOUNDS_S
        )
        registry.register(self._step_s)
        self._seconds = Histogram(
            "minefleet_actor_inference_seconds", "Time of one inference batch.", registry=registry
        )
        self._batch = Histogram(
            "minefleet_actor_inference_batch_size",
            "Slots in one inference batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=registry,
        )
        self.videos = Counter(
            "minefleet_actor_videos",
            "Videos of whole episodes, by what became of them.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("written", "lost"):
            self.videos.labels(outcome)
        self.frames_dropped = Counter(
            "minefleet_actor_video_frames_dropped",
            "Frames of filmed episodes that the encoder had no time for.",
            registry=registry,
        )
        self.actor = actor
        """This incarnation."""
        self._lock = threading.Lock()
        self._env_steps = np.zeros(shards, np.int64)
        self._env_failures = np.zeros(shards, np.int64)
        self._failures_by_kind: Counts[str] = Counts()
        self._recent_steps = Recent(
            lambda: {"steps": int(self._env_steps.sum()), "seconds": time.monotonic()}, window_s=RATE_WINDOW_S
        )
        self.slot_time = SlotTimer()
        self._recent = Recent(self.slot_time.seconds)
        registry.register(SlotTimeCollector(self.slot_time))

    def stepped(self, shards: NDArray[np.intp], seconds: NDArray[np.float64]) -> None:
        """Counts environment steps, by the shards of the slots that took them, and how long each took."""
        self._steps.inc(len(shards))
        self._step_s.observe(seconds)
        with self._lock:
            np.add.at(self._env_steps, shards, 1)

    def failed(self, shard: int, kind: str) -> None:
        """Counts a failure."""
        self._failures.labels(kind).inc()
        self._failures_by_kind[kind] += 1
        with self._lock:
            self._env_failures[shard] += 1

    def slots(self, *, blocked: Mapping[str, int], resetting: int, cooling_down: int, queued: int) -> dict[str, float]:
        """Sets the gauges of slots, and returns them for the status: blocked slots by reason, queued fragments."""
        for reason in REASONS:
            self._blocked.labels(reason).set(blocked.get(reason, 0))
        self._resetting.set(resetting)
        self._cooling_down.set(cooling_down)
        self._queued.set(queued)
        by_reason = {f"blocked_for_{reason}": blocked.get(reason, 0) for reason in REASONS}
        return {
            **by_reason,
            "resetting_slots": resetting,
            "cooling_down_slots": cooling_down,
            "queued_fragments": queued,
        }

    @contextmanager
    def inferring(self, batch_size: int) -> Iterator[None]:
        """Times one batch."""
        began = time.monotonic()
        yield
        self._seconds.observe(time.monotonic() - began)
        self._batch.observe(batch_size)

    def progress(self, shard: int) -> replay_service_pb2.ActorProgress:
        """The counts of one shard, cumulative over this incarnation."""
        with self._lock:
            return replay_service_pb2.ActorProgress(
                actor=self.actor, env_steps=self._env_steps[shard], env_failures=self._env_failures[shard]
            )

    def totals(self) -> dict[str, float]:
        """Over all shards; failures also by kind, for people."""
        with self._lock:
            env_steps, env_failures = int(self._env_steps.sum()), int(self._env_failures.sum())
        by_kind = {f"failed_by_{kind}": count for kind, count in sorted(self._failures_by_kind.items())}
        grown = self._recent_steps.grown()
        pace = round(grown["steps"] / max(grown["seconds"], 1e-9), 1)
        spent = {f"{SLOT_PREFIX}{kind}": seconds for kind, seconds in self._recent.grown().items()}
        return {"env_steps": env_steps, "env_steps_per_s": pace, "env_failures": env_failures, **by_kind, **spent}
