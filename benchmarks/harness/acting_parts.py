"""Environments and policies of the actor's benchmarks, as generators of a configuration."""

import time
from typing import Any

from torch import Tensor

from minefleet.core.schema import Schema
from minefleet.policies import ActorCritic

FORWARD_S = 0.005
FRAMES_POLICY: dict[str, Any] = {
    "hidden_size": 256,
    "conv_channels": [32, 64, 128],
    "activation": "relu",
    "gru_size": 256,
}
"""Atari's convolutions, the last one as wide as Sample Factory has it, and a GRU."""


class Waiter(ActorCritic):
    """Takes `FORWARD_S` for a batch of any size: waits, as one waits for a GPU."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, features=schema.obs.shape[0])

    def encode(self, obs: Any) -> Tensor:
        time.sleep(FORWARD_S)
        features: Tensor = obs
        return features


def waiter(schema: Schema) -> Waiter:
    return Waiter(schema)
