"""Batches whose observations are unpacked pass by pass, against those that hold all of them."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minefleet.codec import HalfPacked, decode_half, encode
from minefleet.config import TrainConfig
from minefleet.fragment import Fragment
from minefleet.policies import Policy
from minefleet.tree import Tree, flatten
from minefleet_learner.assembly import build_optimizer
from minefleet_learner.batch import Batch, Name, collate
from minefleet_learner.collating import Collator
from minefleet_learner.forward import Selection, observations, select_seen, select_steps, stored_state
from minefleet_learner.schedule import rates
from minefleet_learner.update import Updater

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
    return decode_half(*encode(fragment, run_id="r", stream=name[0], sequence=name[1], schema_fingerprint="f"))


@contextmanager
def collated(named: Sequence[tuple[Name, Fragment]], decoded_bytes: int, threads: int = 2) -> Iterator[Batch]:
    collator = Collator(CPU, decoded_bytes=decoded_bytes, threads=threads)
    yield collator.collate([(name, half(name, fragment)) for name, fragment in named])
    collator.close()


def some_bytes(named: Sequence[tuple[Name, Fragment]]) -> int:
    """What about half of the fragments take."""
    return sum(half(name, fragment).large_bytes for name, fragment in named) // 2


def same(one: Tree, other: Tree) -> bool:
    left, right = flatten(one), flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[path], right[path]) for path in left)


def test_what_fits_is_the_batch_of_the_same_fragments_unpacked(make_fragment: Make) -> None:
    named = fragments_of(make_fragment)
    expected = collate(named)
    with collated(named, 2**20) as batch:
        assert batch.unpacker is None
        for field in Batch.__dataclass_fields__:
            if field not in ("names", "unpacker"):
                assert same(getattr(batch, field), getattr(expected, field)), field
        assert not batch.seen["vector"][~batch.seen_mask].any()


@pytest.mark.parametrize("threads", [1, 3])
@given(
    passes=st.lists(st.permutations(range(len(SIZES))).flatmap(lambda p: st.integers(1, 6).map(lambda n: p[:n]))),
    announced=st.booleans(),
    kept=st.sampled_from([0.0, 0.5, 0.9]),
    whole_rows=st.booleans(),
    of_steps=st.booleans(),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_pass_sees_what_a_batch_that_holds_everything_shows(
    make_fragment: Make,
    threads: int,
    passes: list[list[int]],
    announced: bool,
    kept: float,
    whole_rows: bool,
    of_steps: bool,
) -> None:
    named = fragments_of(make_fragment)
    expected = collate(named)
    with collated(named, int(2 * kept * some_bytes(named)), threads) as batch:
        assert batch.unpacker is not None
        if announced:
            batch.announce([torch.tensor(rows) for rows in passes])
        for rows in passes:
            select = select_steps if of_steps else select_seen
            chosen: Selection = select(batch, torch.tensor(rows), whole_rows=whole_rows)
            assert same(observations(batch, chosen.rows, chosen.seen), observations(expected, chosen.rows, chosen.seen))
            assert same(stored_state(batch, chosen.rows), stored_state(expected, chosen.rows))


def test_passes_that_come_otherwise_than_announced_are_right_all_the_same(make_fragment: Make) -> None:
    named = fragments_of(make_fragment)
    expected = collate(named)
    with collated(named, 0) as batch:
        batch.announce([torch.tensor(rows) for rows in ([0, 1], [2, 3], [4, 5])])
        for rows in ([0, 1], [0, 1], [5], [2, 3], [1, 0], [4, 5], [3]):
            assert same(stored_state(batch, torch.tensor(rows)), stored_state(expected, torch.tensor(rows)))


@pytest.mark.parametrize("gru_size", [0, 5])
@pytest.mark.parametrize("share", [0, 1])
def test_training_comes_to_the_same_bits_whatever_is_kept(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int, share: int
) -> None:
    named = fragments_of(make_fragment, STATE if gru_size else {})
    results = []
    for decoded_bytes in (2**20, share * some_bytes(named)):
        policy = make_policy(gru_size, normalize_obs=True)
        with collated(named, decoded_bytes) as batch:
            assert (batch.unpacker is None) == (decoded_bytes == 2**20)
            results.append(trained(policy, batch))
    assert same(*results)


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


def test_memory_grows_by_what_is_packed_and_not_by_what_is_unpacked() -> None:
    script = str(Path(__file__).with_name("unpacking_memory.py"))
    cases = ["16,0", "256,0", f"256,{2**40}"]
    done = subprocess.run([sys.executable, script, *cases], capture_output=True, text=True, check=True)
    few, many, held = (json.loads(line) for line in done.stdout.splitlines())
    raw, packed = many["raw"] - few["raw"], many["packed"] - few["packed"]
    assert packed < raw / 4
    assert many["peak"] - few["peak"] < packed + raw / 4
    assert held["peak"] - many["peak"] > raw / 2
