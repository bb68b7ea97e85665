"""Random fragments, schemas and policies for the learner's tests. One thread for torch: the batches are tiny."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minefleet.config import PolicyConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy, build

SIZE = 3
ACTIONS = 4
SCHEMA = Schema(
    obs={"vector": Leaf(kind="box", shape=(SIZE,), dtype="float32")},
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(ACTIONS,)),
)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


@pytest.fixture
def odd_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import tracker_package  # Ranks that a test starts import this file from elsewhere.

    monkeypatch.syspath_prepend(str(tracker_package.write(tmp_path / "installed")))


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    def make(gru_size: int = 0, seed: int = 0, normalize_obs: bool = False) -> Policy:
        torch.manual_seed(seed)
        config = PolicyConfig(hidden_size=16, hidden_layers=1, gru_size=gru_size, normalize_obs=normalize_obs)
        return build(config, SCHEMA)

    return make


@pytest.fixture
def make_fragment() -> Callable[..., Fragment]:
    return random_fragment


def random_fragment(
    seed: int,
    length: int = 8,
    *,
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    state: Tree = {},  # noqa: B006  # Never changed.
    version: int = 1,
    **changes: Any,
) -> Fragment:
    """A fragment of noise that ends its episodes at the given steps. `state` gives the shapes of a recurrent state."""
    rng = np.random.default_rng(seed)
    ends = {"terminated": np.zeros(length, np.bool_), "truncated": np.zeros(length, np.bool_)}
    ends["terminated"][list(terminated)] = True
    ends["truncated"][list(truncated)] = True
    done = ends["terminated"] | ends["truncated"]
    cuts = ends["truncated"].copy()
    cuts[-1] |= not done[-1]
    arrays: dict[str, Any] = {
        "obs": {"vector": rng.normal(size=(length, SIZE)).astype(np.float32)},
        "action": rng.integers(0, ACTIONS, length),
        "reward": rng.normal(size=length).astype(np.float32),
        "first": np.concatenate([[False], done[:-1]]),
        "crash": np.zeros(length, np.bool_),
        "behaviour_logp": rng.normal(-1.4, 0.1, length).astype(np.float32),
        "behaviour_value": rng.normal(size=length).astype(np.float32),
        "next_value": rng.normal(size=length).astype(np.float32) * ~ends["terminated"],
        "policy_version": np.full(length, version, np.uint32),
        "cut_index": np.flatnonzero(cuts).astype(np.int32),
        "cut_obs": {"vector": rng.normal(size=(int(cuts.sum()), SIZE)).astype(np.float32)},
        "recurrent_state": tree_map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), state),
    }
    return Fragment(**(arrays | ends | changes))
