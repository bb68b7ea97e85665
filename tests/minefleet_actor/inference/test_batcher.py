"""The batcher decides at the right moment: before `want` returns, in the loop when a batch is due, or in a thread."""

import math
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from minefleet.config import WorkerConfig
from minefleet_actor.build import make_batcher
from minefleet_actor.inference.batcher import InferenceBatcher
from minefleet_actor.metrics.prometheus import ActorMetrics

SLOTS = 6


class Computed(SimpleNamespace):
    """Stands in for an inference, and notes the slots of each batch."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device=torch.device(device), largest=4, batches=[])

    def decide(self, slots: Any, obs: Any, *, keeps: Any, begins: Any) -> list[int]:
        self.batches.append(slots.tolist())
        return list(self.batches[-1])


def made(**how: Any) -> tuple[InferenceBatcher, Computed]:
    inference = Computed()
    return InferenceBatcher(inference, dict, **how), inference  # type: ignore[arg-type]


def want(batcher: InferenceBatcher, *slots: int) -> None:
    no = np.zeros(len(slots), np.bool_)
    batcher.want(np.array(slots), ~no, no)


def test_batcher_want_decides_at_once_where_there_is_nothing_to_wait_for() -> None:
    batcher, inference = made(least=3)
    want(batcher, *range(SLOTS))
    assert inference.batches == [[0, 1, 2, 3], [4, 5]]
    assert batcher.take() == inference.batches
    assert batcher.due_s == math.inf


def test_batcher_decides_in_the_loop_when_enough_slots_are_ready() -> None:
    batcher, inference = made(least=3, timeout_s=1000.0)
    assert batcher.due_s == math.inf
    want(batcher, 5, 1)
    assert 900.0 < batcher.due_s <= 1000.0
    batcher.decide()
    assert not batcher.has_decided
    want(batcher, 3)
    assert batcher.due_s == 0
    batcher.decide()
    assert batcher.take() == inference.batches == [[1, 3, 5]]
    assert batcher.due_s == math.inf


def test_batcher_decides_in_the_loop_for_few_slots_when_time_is_up() -> None:
    batcher, inference = made(least=3, timeout_s=1e-9)
    want(batcher, 2)
    batcher.decide()
    assert inference.batches == [[2]]


def test_batcher_decides_in_the_loop_for_one_batch_at_a_time() -> None:
    batcher, inference = made(least=1, timeout_s=1000.0)
    want(batcher, *range(SLOTS))
    batcher.decide()
    assert inference.batches == [[0, 1, 2, 3]]
    assert batcher.due_s == 0
    batcher.decide()
    assert inference.batches[1:] == [[4, 5]]


def test_batcher_with_a_thread_does_not_decide_in_the_loop() -> None:
    batcher, inference = made(least=1, timeout_s=1000.0, threaded=True)
    want(batcher, 0)
    assert batcher.due_s == math.inf
    batcher.decide()
    assert inference.batches == []


@pytest.mark.parametrize(
    ("cores", "device", "worker", "threaded", "patient"),
    [
        ({0, 1}, "cpu", {}, True, True),
        ({1}, "cpu", {}, False, True),
        ({1}, "meta", {}, True, True),
        ({1}, "cpu", {"envs_per_process": SLOTS}, False, False),
        ({0, 1}, "cpu", {"envs_per_process": SLOTS}, False, False),
        ({0, 1}, "cpu", {"deterministic": True}, False, False),
    ],
)
def test_batcher_decides_in_a_thread_where_the_loop_can_work_meanwhile(
    cores: set[int], device: str, worker: dict[str, Any], threaded: bool, patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    config = WorkerConfig(num_envs=SLOTS, min_batch_size=SLOTS, batch_timeout_s=1000.0, **worker)
    run: Any = SimpleNamespace(config=SimpleNamespace(rollout_config=SimpleNamespace(worker_config=config)))
    pool: Any = SimpleNamespace(obs={}, num_slots=SLOTS, wake=lambda: None)
    inference: Any = Computed(device)
    batcher = make_batcher(run, inference, pool, ActorMetrics(CollectorRegistry(), "actor", 1, SLOTS), inline=False)
    want(batcher, 0)
    assert batcher.is_threaded == threaded
    assert batcher.has_decided != patient
