"""Chaining: fragments that continue each other count as one."""

import pytest
import torch
from torch import Tensor

from minefleet_learner.algorithms.fragment_chain_advantages import chain, contiguous
from minefleet_learner.algorithms.gae import generalized_advantages

NAMES = ("reward", "value", "next_value", "terminated", "truncated")


def long_row(length: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    floats = torch.randn(3, 1, length, generator=generator, dtype=torch.float64)
    bools = torch.rand(2, 1, length, generator=generator) < 0.1
    return dict(zip(NAMES, (*floats, *bools), strict=True))


def cut(row: dict[str, Tensor], lengths: list[int]) -> dict[str, Tensor]:
    """The row as padded fragments [B, T] with their mask; padding is garbage."""
    width = max(lengths)
    fragments = {
        name: torch.nn.utils.rnn.pad_sequence(
            list(torch.split(tensor[0], lengths)),
            batch_first=True,
            padding_value=float("nan") if name in NAMES[:3] else True,
        )
        for name, tensor in row.items()
    }
    return fragments | {"mask": torch.arange(width) < torch.tensor(lengths)[:, None]}


def whole(row: dict[str, Tensor]) -> Tensor:
    return generalized_advantages(*(row[name] for name in NAMES), discount=0.97, gae_lambda=0.9)


@pytest.mark.parametrize("seed", range(10))
def test_chain_of_fragments_in_any_order_equals_one_long_fragment(seed: int) -> None:
    row, lengths = long_row(23, seed), [7, 1, 9, 6]
    fragments = cut(row, lengths)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    names = [("stream", 10 + index) for index in order.tolist()]
    shuffled = {name: tensor[order] for name, tensor in fragments.items()}
    advantage = chain(names, **shuffled, discount=0.97, gae_lambda=0.9)
    joined = torch.cat([advantage[place][shuffled["mask"][place]] for place in order.argsort().tolist()])
    torch.testing.assert_close(joined, whole(row)[0], rtol=0, atol=1e-9)
    assert (advantage[~shuffled["mask"]] == 0).all()


def test_chain_breaks_at_a_gap() -> None:
    row, lengths = long_row(12, 0), [4, 4, 4]
    advantage = chain([("s", 0), ("s", 1), ("s", 3)], **cut(row, lengths), discount=0.97, gae_lambda=0.9)
    before = whole({name: tensor[:, :8] for name, tensor in row.items()})
    after = whole({name: tensor[:, 8:] for name, tensor in row.items()})
    torch.testing.assert_close(advantage.flatten(), torch.cat([before, after], 1).flatten())


def test_chain_breaks_at_another_stream() -> None:
    row = long_row(8, 1)
    advantage = chain([("a", 0), ("b", 1)], **cut(row, [4, 4]), discount=0.97, gae_lambda=0.9)
    halves = [whole({name: tensor[:, part] for name, tensor in row.items()}) for part in (slice(4), slice(4, 8))]
    torch.testing.assert_close(advantage, torch.cat(halves))


def test_contiguous_groups_every_fragment_once_also_a_name_that_comes_twice() -> None:
    assert contiguous([("b", 2), ("a", 6), ("b", 4), ("a", 5), ("b", 5)]) == [[3, 1], [0], [2, 4]]
    assert contiguous([("a", 1), ("a", 1), ("a", 2)]) == [[0], [1, 2]]


def test_chain_of_fragments_with_too_few_names_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1 for 2"):
        chain([("s", 0)], **cut(long_row(8, 0), [4, 4]), discount=0.97, gae_lambda=0.9)
