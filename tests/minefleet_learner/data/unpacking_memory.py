"""Trains on fragments of frames in one process; prints its peak memory and what it trained on, a JSON line per case.

python unpacking_memory.py FRAGMENTS,DECODED_BYTES ...
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import ActorCritic
from minefleet.rpc.codec import HalfPacked, decode_half, encode
from minefleet.v1 import fragment_pb2
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.collate import Collator
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

STEPS, FRAME = 64, (64, 64, 3)
SCHEMA = Schema(
    obs=Leaf(kind="box", shape=FRAME, dtype="uint8"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(4,)),
)
CONFIG = TrainConfig(batch_size_per_gpu=2, epochs_per_iteration=2, num_readers=2)


class Corner(nn.Module):
    """Looks at a few pixels: what costs memory is the frames."""

    def forward(self, frames: Tensor) -> Tensor:
        """[N, 64]."""
        return frames[:, ::8, ::8, 0].flatten(1).float() / 255


def packed(number: int) -> HalfPacked:
    """A fragment whose frames pack about eightfold."""
    rng = np.random.default_rng(number)
    tiles = rng.integers(0, 256, (STEPS + 1, 16, 8, 3), np.uint8)
    frames = np.ascontiguousarray(np.tile(tiles, (1, 4, 8, 1)))
    floats, flags = np.zeros(STEPS, np.float32), np.zeros(STEPS, np.bool_)
    fragment = Fragment(
        obs=frames[:-1],
        action=rng.integers(0, 4, STEPS),
        reward=rng.normal(size=STEPS).astype(np.float32),
        terminated=flags,
        truncated=flags,
        first=flags,
        crash=flags,
        behaviour_logp=np.full(STEPS, -np.log(4), np.float32),
        behaviour_value=floats,
        next_value=floats,
        policy_version=np.ones(STEPS, np.uint32),
        cut_index=np.array([STEPS - 1], np.int32),
        cut_obs=frames[-1:],
        recurrent_state={},
    )
    header = fragment_pb2.FragmentHeader(name=fragment_pb2.FragmentName(stream=f"s{number}"))
    return decode_half(*encode(header, fragment))


def train(fragments: int, decode_cache_bytes: int) -> dict[str, int]:
    """One update; what it trained on, bytes, and the peak of the process so far."""
    halves = [packed(number) for number in range(fragments)]
    policy = ActorCritic(SCHEMA, Corner(), features=64)
    collator = Collator(torch.device("cpu"), decode_cache_bytes=decode_cache_bytes, threads=CONFIG.num_readers)
    report = Updater(policy, build_optimizer(policy, CONFIG), CONFIG, None).update(
        collator.collate(halves), rates(CONFIG, 0, 0.0)
    )
    assert report.is_trained
    collator.close()
    return {
        "packed": sum(len(half.payload) for half in halves),
        "raw": sum(half.large_bytes for half in halves),
        "peak": peak_bytes(),
    }


def peak_bytes() -> int:
    """Most memory that this program had; `ru_maxrss` would count that of the process that started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        sys.stdout.write(json.dumps(train(*map(int, case.split(",")))) + "\n")
