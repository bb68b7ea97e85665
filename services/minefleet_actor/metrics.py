"""What an actor counts."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from minefleet.v1 import replay_service_pb2


class ActorMetrics:
    """The actor's metrics, and its progress as replay is told of it: each step on one lane."""

    def __init__(self, registry: CollectorRegistry, actor: str, lanes: int = 1) -> None:
        self.version = Gauge("minefleet_actor_policy_version", "Version of the weights in use.", registry=registry)
        self.held = Gauge("minefleet_actor_held_slots", "Slots that wait for a grant or for room.", registry=registry)
        self._steps = Counter("minefleet_actor_env_steps", "Environment steps taken.", registry=registry)
        self._failures = Counter(
            "minefleet_actor_env_failures", "Environments that failed and were replaced.", registry=registry
        )
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
        self.frames_left_out = Counter(
            "minefleet_actor_video_frames_left_out",
            "Frames of filmed episodes that the encoder had no time for.",
            registry=registry,
        )
        self._actor = actor
        self._lock = threading.Lock()
        self._env_steps = np.zeros(lanes, np.int64)
        self._env_failures = np.zeros(lanes, np.int64)

    def stepped(self, lanes: NDArray[np.intp]) -> None:
        """Counts environment steps, by the lanes of the slots that took them."""
        self._steps.inc(len(lanes))
        with self._lock:
            np.add.at(self._env_steps, lanes, 1)

    def failed(self, lane: int) -> None:
        """Counts a failure."""
        self._failures.inc()
        with self._lock:
            self._env_failures[lane] += 1

    @contextmanager
    def inferring(self, batch_size: int) -> Iterator[None]:
        """Times one batch."""
        began = time.monotonic()
        yield
        self._seconds.observe(time.monotonic() - began)
        self._batch.observe(batch_size)

    def progress(self, lane: int) -> replay_service_pb2.ActorProgress:
        """What one lane has counted, cumulative over this incarnation."""
        with self._lock:
            return replay_service_pb2.ActorProgress(
                actor=self._actor, env_steps=self._env_steps[lane], env_failures=self._env_failures[lane]
            )

    def totals(self) -> dict[str, float]:
        """Over all lanes."""
        with self._lock:
            return {"env_steps": int(self._env_steps.sum()), "env_failures": int(self._env_failures.sum())}
