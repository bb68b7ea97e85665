"""A learner takes its share of the machine."""

import os
from dataclasses import replace

import pytest
import torch

from minefleet.config import FleetConfig, RolloutConfig, TrainConfig
from minefleet.config.rollout import ReplayBufferConfig
from minefleet_learner.build import set_up_torch


@pytest.mark.parametrize(
    ("cores", "max_staleness", "wanted", "threads"),
    [(4, 1, 0, 3), (4, 0, 0, 4), (1, 1, 0, 1), (1, 0, 0, 1), (4, 0, 2, 2)],
)
def test_learner_leaves_a_core_to_actors_unless_they_wait_while_it_trains(
    cores: int, max_staleness: int, wanted: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    config = FleetConfig(
        rollout_config=RolloutConfig(replay_buffer_config=ReplayBufferConfig(max_staleness=max_staleness)),
        train_config=replace(TrainConfig(), torch_threads=wanted, device="cpu"),
    )
    set_up_torch(config)
    assert torch.get_num_threads() == threads
