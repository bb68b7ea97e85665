"""Random observations are within their bounds, and reach them."""

import torch

from minefleet.core.schema import Leaf, Schema
from minefleet.policies.random_observation import BATCH, STEPS, random_observation

SIZE = 200
LEAVES = {
    "mask": Leaf(kind="box", shape=(SIZE,), dtype="uint8", low=0, high=1),
    "image": Leaf(kind="box", shape=(SIZE, 20), dtype="uint8", low=0, high=255),
    "object": Leaf(kind="box", shape=(SIZE,), dtype="int64", low=-1, high=2),
    "number": Leaf(kind="box", shape=(SIZE, 2), dtype="float32", low=(-1.0, 0.0) * SIZE, high=5.0),
    "unbounded": Leaf(kind="box", shape=(SIZE,), dtype="float32"),
    "choice": Leaf(kind="multi_discrete", shape=(2,), dtype="int64", categories=(3, 1)),
    "text": Leaf(kind="text", shape=(4,), dtype="uint8"),
}


def test_random_observation_is_within_bounds_and_its_integers_reach_both() -> None:
    obs = random_observation(Schema(obs=LEAVES, action={}), torch.Generator().manual_seed(0))
    assert {key: tuple(values.shape) for key, values in obs.items()} == {
        key: (BATCH, STEPS, *leaf.shape) for key, leaf in LEAVES.items()
    }
    assert all(values.dtype == getattr(torch, LEAVES[key].dtype) for key, values in obs.items())
    assert obs["mask"].unique().tolist() == [0, 1]
    assert obs["image"].unique().tolist() == list(range(256))
    assert obs["object"].unique().tolist() == [-1, 0, 1, 2]
    assert set(obs["choice"][..., 0].unique().tolist()) <= {0, 1, 2}
    assert obs["choice"][..., 1].unique().tolist() == [0]
    assert obs["text"].unique().tolist() == [0]
    assert obs["number"][..., 0].min() < -0.9
    assert 0 <= obs["number"][..., 1].min() < obs["number"].max() <= 5
    assert obs["unbounded"].abs().max() > 1
