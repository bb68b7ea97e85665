"""Minibatches are drawn from every trained step once an epoch, each from anywhere in the iteration."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.updates import make_batch, make_updater

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.policies import Policy
from minefleet_learner.data.batch import collate
from minefleet_learner.data.minibatch_sampling import PADDING, draw, evenly
from minefleet_learner.data.sequence_windows import Pieces, cut, sequences, windows
from minefleet_learner.targets.forward_passes import evaluate_pieces
from minefleet_learner.targets.sequence_start_states import states_before
from minefleet_learner.targets.value_and_advantage_estimates import recompute
from minefleet_learner.training.schedules import rates

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
Masks = st.integers(1, 12).flatmap(
    lambda steps: st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=1, max_size=6)
)


STATE = {"gru": np.zeros(5)}


def slow_cut(trained: list[list[bool]], longest: int, burn_in: int) -> list[tuple[int, list[int]]]:
    """The fragment and the trained steps of each piece."""
    pieces = []
    for row, flags in enumerate(trained):
        bounds = [0, *range(burn_in, len(flags), longest), len(flags)]
        for start, end in pairwise(bounds):
            steps = [step for step in range(start, end) if flags[step]]
            if steps:
                pieces.append((row, steps))
    return pieces


@given(trained=Masks, longest=st.integers(1, 12), burn_in=st.integers(0, 14))
def test_pieces_are_the_windows_of_each_fragment_that_have_something_to_train_on(
    trained: list[list[bool]], longest: int, burn_in: int
) -> None:
    width = len(trained[0])
    pieces = cut(torch.tensor(trained), windows(width, longest, min(burn_in, width - 1)))
    got = [
        (row, [step - row * width for step, is_trained in zip(steps, mask, strict=True) if is_trained])
        for row, steps, mask in zip(pieces.row.tolist(), pieces.steps.tolist(), pieces.mask.tolist(), strict=True)
    ]
    assert got == slow_cut(trained, longest, min(burn_in, width - 1))
    assert (pieces.steps // width == pieces.row.unsqueeze(1)).all()


@given(trained=Masks, longest=st.integers(1, 5), data=st.data())
def test_pieces_of_some_fragments_are_what_would_be_cut_of_those_alone(
    trained: list[list[bool]], longest: int, data: Any
) -> None:
    mask = torch.tensor(trained)
    rows = torch.tensor(sorted(data.draw(st.sets(st.integers(0, len(trained) - 1), min_size=1))))
    parts = windows(mask.shape[1], longest)
    whole, alone = cut(mask, parts), cut(mask[rows], parts)
    some, chosen = whole.of(rows, mask.shape[1])
    for name in Pieces.__dataclass_fields__:
        assert torch.equal(getattr(some, name), getattr(alone, name)), name
    assert torch.equal(whole.mask[chosen], some.mask)


@pytest.mark.parametrize("most", [1, 4, 100])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_minibatch_draw_has_every_piece_once_in_steps_of_one_size(make_fragment: Make, count: int, most: int) -> None:
    batch = make_batch(make_fragment, 0)
    pieces = cut(batch.mask, windows(batch.mask.shape[1], 1))
    groups = draw(batch, pieces.row, pieces.lengths, count, most)
    assert sorted(torch.cat([torch.cat(group) for group in groups]).tolist()) == list(range(len(pieces)))
    sizes = [sum(map(len, group)) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert max(len(part) for group in groups for part in group) <= most


def test_a_minibatch_has_steps_of_all_fragments_alike(make_fragment: Make) -> None:
    """Of a minibatch's eight steps, two are of one fragment of 64 by chance only: they are not neighbours."""
    batch = collate([((f"s{index}", 0), make_fragment(index, 64)) for index in range(16)])
    pieces = cut(batch.mask, windows(64, 1))
    torch.manual_seed(0)
    pairs = Counter(
        bool(pieces.row[one] == pieces.row[other])
        for group in draw(batch, pieces.row, pieces.lengths, 128, 8)
        for one, other in torch.combinations(group[0])
    )
    # By chance 63 of 1023; with fragments of 64 steps kept together it would be all of them.
    assert pairs[True] / pairs.total() == pytest.approx(63 / 1023, rel=0.2)


@given(lengths=st.lists(st.integers(1, 64), min_size=1), most=st.integers(1, 9))
def test_sequences_of_a_pass_are_of_like_length(lengths: list[int], most: int) -> None:
    parts = [part.tolist() for part in evenly(torch.tensor(lengths), most)]
    assert sorted(number for part in parts for number in part) == list(range(len(lengths)))
    for part in parts:
        steps = [lengths[number] for number in part]
        assert len(part) <= most
        assert sum(steps) >= (1 - PADDING) * len(part) * max(steps)


@pytest.mark.parametrize("context_length", [4, 64])
def test_an_update_computes_little_padding_where_half_the_steps_are_of_short_fragments(
    make_fragment: Make, make_policy: MakePolicy, context_length: int
) -> None:
    """Fragments of 8 steps beside some of 31, which end with the observation after their cut."""
    policy, computed = make_policy(5), 0
    config = TrainConfig(
        batch_size_per_gpu=4, batches_per_iteration=2, epochs_per_iteration=3, context_length=context_length
    )
    lengths = [8, 31, 8, 8, 8] * 4
    fragments = [make_fragment(seed, steps, state=STATE) for seed, steps in enumerate(lengths)]

    def count(_: object, passed: tuple[Any, ...]) -> None:
        nonlocal computed
        computed += passed[2].numel()

    policy.register_forward_pre_hook(count)
    batch = collate([((f"s{index}", 0), fragment) for index, fragment in enumerate(fragments)])
    report = make_updater(policy, config).update(batch, rates(config, 0, 0.0))
    wanted = sum(lengths) + len(lengths) + 3 * sum(lengths)
    assert report.skipped_steps == 0
    assert wanted <= computed <= wanted / (1 - PADDING)


def test_minibatch_sequences_go_on_from_the_state_before_and_pass_no_gradient_to_it(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    policy = make_policy(5)
    fragments = [make_fragment(seed, 7, truncated=(2,), state={"gru": np.zeros(5)}) for seed in range(3)]
    batch = collate([((f"s{index}", 0), fragment) for index, fragment in enumerate(fragments)])
    batch.seen["vector"].requires_grad_(True)
    whole = evaluate_pieces(policy, batch, torch.arange(3), cut(batch.mask, windows(7, 7)).steps, {})
    parts = windows(7, 3)
    pieces = cut(batch.mask, parts)
    before = states_before(policy, batch, parts, rows_per_pass=2, dtype=torch.float32, state={})
    start = {"gru": before["gru"][pieces.row, pieces.window]}
    output = evaluate_pieces(policy, batch, pieces.row, pieces.steps, start)
    torch.testing.assert_close(output.value[pieces.mask], whole.value.flatten())
    torch.testing.assert_close(output.params[pieces.mask], whole.params.flatten(0, 1))
    (gradient,) = torch.autograd.grad(output.value[pieces.window == 1].sum(), batch.seen["vector"])
    trained = torch.zeros(batch.seen_mask.shape, dtype=torch.bool)
    trained.view(-1)[batch.position[:, 3:6]] = True
    assert not gradient[~trained].any()
    assert gradient[trained].any(-1).all()


def test_a_pass_over_all_that_was_seen_leaves_states_that_say_the_same(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    policy, config = make_policy(5), TrainConfig(batch_size_per_gpu=4, context_length=3, burn_in=1)
    cuts: list[tuple[int, ...]] = [(), (0,), (2,), (4,), (1, 4), (3, 5)]
    fragments = [make_fragment(seed, 7 - seed % 2, truncated=at, state=STATE) for seed, at in enumerate(cuts)]
    batch = collate([((f"s{index}", 0), fragment) for index, fragment in enumerate(fragments)])
    batch = replace(batch, recurrent_state={"gru": torch.randn(len(batch), 5)})
    parts = sequences(batch.mask.shape[1], config)
    pieces = cut(batch.mask, parts)
    before = states_before(policy, batch, parts, rows_per_pass=6, dtype=torch.float32, state={})
    values = [
        evaluate_pieces(policy, batch, pieces.row, pieces.steps, {"gru": start["gru"][pieces.row, pieces.window]}).value
        for start in (recompute(policy, batch, config).start, before)
    ]
    torch.testing.assert_close(values[0][pieces.mask], values[1][pieces.mask])


def test_states_before_are_the_same_whatever_the_rows_of_a_pass(make_fragment: Make, make_policy: MakePolicy) -> None:
    policy, batch = make_policy(5), make_batch(make_fragment, 0, 5)
    state = {"gru": torch.randn(len(batch), 5)}
    options: dict[str, Any] = {"dtype": torch.float32, "state": state}
    parts = windows(batch.mask.shape[1], 2, 3)
    one, all_of_them = (states_before(policy, batch, parts, rows_per_pass=rows, **options)["gru"] for rows in (1, 6))
    is_there = batch.mask[:, [part.start for part in parts]]
    torch.testing.assert_close(one[is_there], all_of_them[is_there])
    assert torch.equal(one[:, 0], state["gru"])
    stored = states_before(
        policy, replace(batch, recurrent_state=state), parts, rows_per_pass=6, **options | {"state": {}}
    )
    assert torch.equal(stored["gru"], all_of_them)
