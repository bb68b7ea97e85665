"""Batches whose observations are unpacked pool by pool, against those that hold all of them."""

import copy
import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree, flatten
from minefleet.policies import Policy
from minefleet.rpc.codec import HalfPacked, decode_half, encode
from minefleet.v1 import fragment_pb2
from minefleet_learner.build import build_optimizer
from minefleet_learner.data import decode_ahead
from minefleet_learner.data.batch import Batch, Name, collate, subset
from minefleet_learner.data.collate import Collator
from minefleet_learner.data.decode_ahead import DecodedRows
from minefleet_learner.data.unpacked_observations import UnpackedObs, stack
from minefleet_learner.targets.forward_passes import observations, select_seen, stored_state
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
CPU = torch.device("cpu")
SIZES = (8, 5, 1, 7, 9, 3)
STATE = {"gru": np.zeros(5)}


def fragments_of(make: Make, state: Tree = STATE) -> list[tuple[Name, Fragment]]:
    def one(index: int, length: int) -> Fragment:
        cut = (length // 2,) if length > 2 else ()
        return make(index, length, truncated=cut, terminated=(length - 1,) if index % 2 else (), state=state)

    return [((f"s{index // 2}", index % 2), one(index, length)) for index, length in enumerate(SIZES)]


def half(name: Name, fragment: Fragment) -> HalfPacked:
    header = fragment_pb2.FragmentHeader(name=fragment_pb2.FragmentName(stream=name[0], sequence=name[1]))
    return decode_half(*encode(header, fragment))


@contextmanager
def collated(
    named: Sequence[tuple[Name, Fragment]], decode_cache_bytes: int, threads: int = 2, least_rows: int = 1
) -> Iterator[Batch]:
    collator = Collator(CPU, decode_cache_bytes=decode_cache_bytes, threads=threads, least_rows=least_rows)
    yield collator.collate([half(name, fragment) for name, fragment in named])
    collator.close()


def some_bytes(named: Sequence[tuple[Name, Fragment]]) -> int:
    """The bytes of about half of the fragments."""
    return sum(half(name, fragment).large_bytes for name, fragment in named) // 2


def same(one: Tree, other: Tree) -> bool:
    left, right = flatten(one), flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[path], right[path]) for path in left)


def test_collate_of_fragments_that_fit_is_the_batch_of_the_same_ones_unpacked(make_fragment: Make) -> None:
    named = fragments_of(make_fragment)
    expected = collate(named)
    with collated(named, 2**20) as batch:
        assert batch.unpacker is None
        assert same(batch.tensors(), expected.tensors())
        assert not batch.seen["vector"][~batch.seen_mask].any()


def test_durations_are_collated_with_ones_for_fragments_that_have_none(make_fragment: Make) -> None:
    timed = make_fragment(0, 3, duration=np.array([2, 5, 1], np.uint32))
    batch = collate([(("a", 0), timed), (("b", 0), make_fragment(1, 4))])
    assert batch.duration is not None
    assert batch.duration.tolist() == [[2, 5, 1, 0], [1, 1, 1, 1]]
    part = subset(batch, torch.tensor([1])).duration
    assert part is not None
    assert part.tolist() == [[1, 1, 1, 1]]
    assert collate([(("b", 0), make_fragment(1, 4))]).duration is None


def sees_the_same(batch: Batch, expected: Batch, rows: list[int], *, whole_rows: bool = True) -> None:
    chosen = select_seen(batch, torch.tensor(rows), whole_rows=whole_rows)
    assert same(observations(batch, chosen.rows, chosen.seen), observations(expected, chosen.rows, chosen.seen))
    assert same(stored_state(batch, chosen.rows), stored_state(expected, chosen.rows))


@pytest.mark.parametrize("threads", [1, 3])
@given(
    order=st.permutations(range(len(SIZES))),
    others=st.lists(st.lists(st.integers(0, len(SIZES) - 1), min_size=1)),
    share=st.sampled_from([0.0, 0.5, 0.9]),
    whole_rows=st.booleans(),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_pools_show_what_a_batch_that_holds_everything_shows(
    make_fragment: Make, threads: int, order: list[int], others: list[list[int]], share: float, whole_rows: bool
) -> None:
    named = fragments_of(make_fragment)
    expected = collate(named)
    with collated(named, int(2 * share * some_bytes(named)), threads) as batch:
        assert batch.unpacker is not None
        for _ in range(2):
            pools = batch.pools(torch.tensor(order))
            assert torch.cat(list(pools)).tolist() == order
            for pool in pools:
                for rows in (pool.tolist(), pool[:1].tolist(), [*pool.tolist(), *pool.tolist()]):
                    sees_the_same(batch, expected, rows, whole_rows=whole_rows)
        for rows in others:
            sees_the_same(batch, expected, rows, whole_rows=whole_rows)
            some = torch.tensor(rows)
            assert same(subset(batch, some).seen, subset(expected, some).seen)


def test_batch_rows_taken_in_another_order_than_announced_are_right(make_fragment: Make) -> None:
    named = fragments_of(make_fragment)
    expected = collate(named)
    with collated(named, 0, least_rows=2) as batch:
        assert [len(pool) for pool in batch.pools(torch.arange(6))] == [2, 2, 2]
        for rows in ([0, 1], [1], [5], [2, 3], [1, 0], [4, 5], [3]):
            sees_the_same(batch, expected, rows)


def test_batch_keeps_at_most_two_pools_in_memory(make_fragment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked, alive = list[weakref.ref[Tensor]](), list[int]()

    def counted(*arguments: Any, **options: Any) -> UnpackedObs:
        large = stack(*arguments, **options)
        stacked.append(weakref.ref(large.seen["vector"]))
        alive.append(sum(tensor() is not None for tensor in stacked))
        return large

    monkeypatch.setattr(decode_ahead, "stack", counted)
    with collated(fragments_of(make_fragment), 0) as batch:
        for pool in batch.pools(torch.arange(6)):
            stored_state(batch, pool)
    assert alive == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("gru_size", [0, 5])
@pytest.mark.parametrize("share", [0, 1])
def test_training_on_pools_gives_the_same_bits_as_on_the_whole_batch(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int, share: int
) -> None:
    named = fragments_of(make_fragment, STATE if gru_size else {})
    with collated(named, share * some_bytes(named)) as batch:
        assert batch.unpacker is not None
        whole = collate(named)
        held = AllInMemory(whole, pool=len(batch.pools(torch.arange(6))[0]))
        whole = replace(whole, unpacker=held)  # type: ignore[arg-type]  # It has what is asked of one.
        results = [trained(make_policy(gru_size, normalize_obs=True), one) for one in (batch, whole)]
    assert same(*results)


class AllInMemory:
    """Has pools of a batch like an unpacker, and all of it in memory."""

    def __init__(self, batch: Batch, pool: int) -> None:
        large = UnpackedObs(seen=batch.seen, recurrent_state=batch.recurrent_state)
        self._held = DecodedRows(large=large, place=torch.arange(len(batch)))
        self._pool = pool

    def announce(self, rows: Tensor) -> Sequence[Tensor]:
        return torch.split(rows, self._pool)

    def take(self, rows: Tensor) -> DecodedRows:
        del rows
        return self._held


def test_collator_logs_once_that_minibatches_come_from_pools(
    make_fragment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fragments = [half(name, fragment) for name, fragment in fragments_of(make_fragment)]
    collator = Collator(CPU, decode_cache_bytes=0, threads=1, least_rows=4)
    for _ in range(2):
        collator.collate(fragments)
    collator.close()
    assert len(caplog.messages) == 1
    assert "minibatches are drawn from 4 of its 6 fragments at a time" in caplog.text


def trained(policy: Policy, batch: Batch) -> dict[str, Any]:
    config = TrainConfig(
        batch_size_per_gpu=2,
        batches_per_iteration=3,
        epochs_per_iteration=2,
        context_length=4,
        kl_divergence_coef_rho=0.1,
    )
    updater = Updater(policy, build_optimizer(policy, config), config, copy.deepcopy(policy).requires_grad_(False))
    torch.manual_seed(1)
    for iteration in range(2):
        updater.update(batch, rates(config, iteration, 0.0))
    return policy.state_dict()


def test_batch_memory_grows_by_packed_and_not_by_unpacked_bytes() -> None:
    script = str(Path(__file__).with_name("unpacking_memory.py"))
    cases = ["16,0", "256,0", f"256,{2**40}"]
    done = subprocess.run([sys.executable, script, *cases], capture_output=True, text=True, check=True)
    few, many, held = (json.loads(line) for line in done.stdout.splitlines())
    raw, packed = many["raw"] - few["raw"], many["packed"] - few["packed"]
    assert packed < raw / 4
    assert many["peak"] - few["peak"] < packed + raw / 4
    assert held["peak"] - many["peak"] > raw / 2
