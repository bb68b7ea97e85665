"""Texts in observations: UTF-8 bytes [N, longest] uint8, zeros after them; a text of nothing is all zeros."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minefleet.policies.layers.layer_utils import TRUNK_GAIN, orthogonal

BYTES = 256
WIDTH = 32
"""Features of a byte and of its place."""
CHANNELS = 64
KERNEL = 5
"""Bytes that a feature of the convolution sees."""


def decode_text(row: Any) -> str:
    """The text of one step, an array or tensor [longest]; for policies that read texts themselves."""
    return bytes(np.asarray(row, np.uint8)).rstrip(b"\0").decode("utf-8", "replace")


class TextFeatures(nn.Module):
    """Embeds each byte and its place, looks at five bytes at a time, and keeps the largest and the mean of what it saw.

    Nothing is seen behind the end, so the room that a text leaves empty does not matter. The cost grows with that room
    all the same: a Text space is declared as long as its texts get, and not longer. On a CPU equal texts cost once.
    """

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.size = 2 * CHANNELS
        self.byte = nn.Embedding(BYTES, WIDTH)
        self.place = nn.Parameter(torch.randn(longest, WIDTH))
        self.convolution = orthogonal(nn.Conv1d(WIDTH, CHANNELS, KERNEL, padding=KERNEL // 2), TRUNK_GAIN)

    def forward(self, text: Tensor) -> Tensor:
        """[N, longest] uint8 to [N, 2 · channels]; zeros for a text of nothing."""
        if text.device.type != "cpu" or torch.compiler.is_compiling():
            return self._features(text)
        # An episode's steps mostly show one text.
        distinct, index = torch.unique(text, dim=0, return_inverse=True)
        return self._features(distinct)[index]

    def _features(self, text: Tensor) -> Tensor:
        is_there = (text != 0).unsqueeze(-1)
        embedded = (self.byte(text.int()) + self.place).masked_fill(~is_there, 0.0)
        seen = self.convolution(embedded.transpose(1, 2)).relu().transpose(1, 2).masked_fill(~is_there, 0.0)
        mean = seen.sum(1) / is_there.sum(1).clamp_min(1)
        return torch.cat((seen.amax(1), mean), -1)
