import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minefleet.policies.vpt.memory_masks import banded, episodes, same_episode, still_remembered

sizes = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def flags(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """`remembered` [B, M] and `first` [B, T]."""
    batch, memory, steps = draw(sizes), draw(sizes), draw(sizes)
    generator = torch.Generator().manual_seed(draw(seeds))
    return (torch.rand(batch, memory, generator=generator) < 0.7, torch.rand(batch, steps, generator=generator) < 0.3)


def has_reset(first: Tensor, start: int, end: int) -> bool:
    """Whether an episode begins with one of the steps `start` to `end`, both included."""
    return bool(first[start : end + 1].any())


@given(flags())
def test_vpt_mask_shows_a_step_what_no_reset_separates_from_it(flagged: tuple[Tensor, Tensor]) -> None:
    remembered, first = flagged
    memory, steps = remembered.shape[1], first.shape[1]
    visible = same_episode(episodes(remembered, first), steps)
    for row in range(len(first)):
        for step in range(steps):
            for key in range(memory):
                wanted = bool(remembered[row, key]) and not has_reset(first[row], 0, step)
                assert visible[row, step, key] == wanted
            for key in range(step + 1):
                assert visible[row, step, memory + key] == (not has_reset(first[row], key + 1, step))


@given(flags())
def test_vpt_memory_mask_keeps_the_frames_that_the_next_step_sees(flagged: tuple[Tensor, Tensor]) -> None:
    remembered, first = flagged
    memory, steps = remembered.shape[1], first.shape[1]
    longer = torch.cat([first, torch.zeros_like(first[:, :1])], 1)
    after = still_remembered(episodes(remembered, first), memory)
    assert torch.equal(after, same_episode(episodes(remembered, longer), 1)[:, 0, steps : steps + memory])


@given(memory=sizes, steps=sizes, seed=seeds)
def test_banded_bias_holds_the_logits_by_distance(memory: int, steps: int, seed: int) -> None:
    by_distance = torch.randn(2, steps, memory, generator=torch.Generator().manual_seed(seed))
    out = banded(by_distance)
    assert out.shape == (2, steps, memory + steps)
    for step in range(steps):
        for key in range(memory + steps):
            distance = step + memory - key
            inside = 0 <= distance < memory
            for row in range(2):
                wanted = by_distance[row, step, distance].item() if inside else -math.inf
                assert out[row, step, key].item() == wanted
