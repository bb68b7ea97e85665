"""Attention masks of VPT's memory, as pure functions.

A chunk of T steps is seen after a memory of M earlier ones. The keys are those of the memory, then those of the chunk:
K = M + T of them, and key k is k - M steps after the first step of the chunk. Step t attends to the keys of its own
episode that are at most M - 1 steps before it, itself included:

                    memory      chunk
    key          0  1  2  3 │ 4  5  6          M = 4, T = 3; step 2 is the first of an episode
    step 0       .  x  x  x │ x  .  .
    step 1       .  .  x  x │ x  x  .
    step 2       .  .  .  . │ .  .  x

`get_mask` of `lib/masked_attention.py` and `bandify` of `lib/util.py` in OpenAI's Video-Pre-Training, which looks at
`first` of a chunk's step 0 only; here it counts everywhere.

Shape legend: B = environments or fragments.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


def episodes(remembered: Tensor, first: Tensor) -> Tensor:
    """[B, M + T] int64, the episode of each key: 0 before the chunk's first reset, then 1, 2, ...; -1 for none.

    Args:
        remembered: [B, M] bool, which rows of the memory belong to the episode that goes on.
        first: [B, T] bool, an episode begins with this step.
    """
    return torch.cat([remembered.long() - 1, first.cumsum(1)], 1)


def same_episode(episode: Tensor, steps: int) -> Tensor:
    """[B, T, K] bool, whether a key is of a step's episode, given `episodes` [B, K]; `steps` is T."""
    return episode[:, -steps:, None] == episode[:, None, :]


def still_remembered(episode: Tensor, memory: int) -> Tensor:
    """[B, M] bool, `remembered` after the chunk: what is of the episode of its last step, given `episodes` [B, K]."""
    return episode[:, -memory:] == episode[:, -1:]


def banded(by_distance: Tensor) -> Tensor:
    """Logits by distance to logits by key; -∞ where a key is later than the step, or M or more steps earlier.

        out[t, k] = by_distance[t, t + M - k]        where 0 <= t + M - k < M

    Each row, with the distances falling, is padded to one entry more than the rows of the result have. Laid out one
    after another and cut into the result's rows, each is one place further right than the last.

    Args:
        by_distance: [..., T, M].

    Returns:
        [..., T, M + T].
    """
    steps, memory = by_distance.shape[-2:]
    padded = functional.pad(by_distance.flip(-1), (1, steps), value=-math.inf)
    keys = steps + memory
    return padded.flatten(-2)[..., : steps * keys].reshape(*padded.shape[:-2], steps, keys)
