"""The reference's recurrent states: carried along a stream where that can be, else the stored ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.updates import equal, make_batch, make_updater, weights

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.tree import tree_map
from minefleet.policies import Policy
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.targets.reference_policy_state_cache import CARRIED_BYTES, ReferenceStateCache
from minefleet_learner.training.schedules import rates

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
GRU = 5
LENGTH = 6


def make_carrier(policy: Policy, most_bytes: int = CARRIED_BYTES) -> ReferenceStateCache:
    return ReferenceStateCache(policy, context_length=4, rows_per_pass=2, dtype=torch.float32, most_bytes=most_bytes)


def stream_of(make: Make, fragments: int, **changes: Any) -> list[Fragment]:
    return [make(number, LENGTH, state={"gru": np.zeros(GRU)}, **changes) for number in range(fragments)]


def batch_of(fragments: list[Fragment], *numbers: int, stream: str = "s") -> Batch:
    return collate([((stream, number), fragments[number]) for number in numbers])


@torch.no_grad()
def state_after(policy: Policy, fragments: list[Fragment]) -> torch.Tensor:
    """The state after fragments in a row, step by step."""
    state = tree_map(lambda leaf: torch.from_numpy(leaf).unsqueeze(0), fragments[0].recurrent_state)
    for fragment in fragments:
        for step in range(len(fragment)):
            obs = {"vector": torch.from_numpy(fragment.obs["vector"][step]).view(1, 1, -1)}
            _, state = policy(obs, state, torch.tensor([[bool(fragment.first[step])]]))
    return torch.as_tensor(state["gru"][0])


@pytest.mark.parametrize("ends", [(), (3,)])
@pytest.mark.parametrize("parts", [[(0, 1, 2)], [(2, 0, 1)], [(0,), (1,), (2,)], [(0, 1), (2, 1)]])
def test_reference_state_is_carried_along_its_stream_within_a_batch_and_to_the_next(
    make_fragment: Make, make_policy: MakePolicy, ends: tuple[int, ...], parts: list[tuple[int, ...]]
) -> None:
    policy, fragments = make_policy(GRU), stream_of(make_fragment, 3, truncated=ends)
    carrier = make_carrier(policy)
    for numbers in parts:
        starts = carrier.starts(batch_of(fragments, *numbers))["gru"]
    torch.testing.assert_close(starts[parts[-1].index(2)], state_after(policy, fragments[:2]), rtol=0, atol=1e-6)


def test_reference_state_without_the_fragment_before_is_the_stored_one(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    fragments = stream_of(make_fragment, 4)
    carrier = make_carrier(make_policy(GRU))
    carrier.starts(batch_of(fragments, 0, 1))
    for batch in (batch_of(fragments, 3), batch_of(fragments, 2, stream="other")):
        assert torch.equal(carrier.starts(batch)["gru"], batch.recurrent_state["gru"])


def test_reference_states_of_streams_of_several_lengths_are_independent(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    policy, carrier = make_policy(GRU), make_carrier(make_policy(GRU))
    batch = make_batch(make_fragment, 0, GRU)  # Streams of two fragments each, all of another length.
    starts = carrier.starts(batch)["gru"]
    for row in range(0, len(batch), 2):
        alone = make_fragment(row, 6 + row, truncated=(2,), terminated=(4,), state={"gru": np.zeros(GRU)})
        torch.testing.assert_close(starts[row + 1], state_after(policy, [alone]), rtol=0, atol=1e-6)


def test_reference_state_cache_is_bounded_and_forgets_the_stream_unseen_for_longest(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    carrier, fragments = make_carrier(make_policy(GRU), most_bytes=2 * GRU * 4), stream_of(make_fragment, 1)
    for stream in ("a", "b", "a", "c"):
        carrier.starts(batch_of(fragments, 0, stream=stream))
    assert bytes(carrier.to_arrays()["streams"]).decode().split("\n") == ["a", "c"]


def train(policy: Policy, batches: list[Batch], config: TrainConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    updater = make_updater(policy, config)
    for number, batch in enumerate(batches):
        updater.update(batch, rates(config, number, 0.0))
    return weights(updater.policy)


def test_reference_state_decides_which_states_the_reference_starts_from(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = TrainConfig(batch_size_per_gpu=3, kl_divergence_coef_rho=1.0, context_length=4)
    fragments = stream_of(make_fragment, 3)
    follow = [batch_of(fragments, 0, 1, 2)]
    apart = [replace(follow[0], names=[("a", 0), ("b", 0), ("c", 0)])]
    stored = replace(config, reference_state="stored")
    assert not equal(train(make_policy(GRU), follow, config), train(make_policy(GRU), follow, stored))
    assert equal(train(make_policy(GRU), apart, config), train(make_policy(GRU), apart, stored))


def test_every_ref_update_interval_the_reference_becomes_the_policy_of_the_moment(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = TrainConfig(
        batch_size_per_gpu=6,
        kl_divergence_coef_rho=0.1,
        enable_ref_update=True,
        ref_update_interval=2,
        reference_state="stored",
        learning_rate=0.01,
    )
    updater = make_updater(make_policy(GRU), config)
    assert updater.reference is not None
    kls = []
    for iteration in range(5):
        before = weights(updater.policy)
        renewed = rates(config, iteration, 0.0).renews_reference
        report = updater.update(make_batch(make_fragment, iteration, GRU), rates(config, iteration, 0.0))
        kls.append(report.reference_kl)
        assert equal(weights(updater.reference), before) == renewed or iteration == 0
    assert [rates(config, number, 0.0).renews_reference for number in range(5)] == [False, False, True, False, True]
    assert kls[1] > 0
    assert kls[2] == pytest.approx(0.0, abs=1e-9)
    fixed = replace(config, enable_ref_update=False)
    assert not any(rates(fixed, number, 0.0).renews_reference for number in range(5))
