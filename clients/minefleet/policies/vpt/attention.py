"""Masked self-attention with a memory of keys and values, and a learned bias by distance.

`SelfAttentionLayer` of `lib/xf.py` in OpenAI's Video-Pre-Training.

Shape legend: B = environments or fragments, T = steps, M = frames of memory, K = M + T keys, h = heads, F = features,
e = F / h, n = basis functions of the bias.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from minefleet.core.tree import Tree
from minefleet.policies.vpt.memory_masks import banded
from minefleet.policies.vpt.normed_layers import fan_in

BASIS = 10
QUERY_SCALE, KEY_SCALE, WEIGHT_SCALE, BASIS_SCALE = 0.1, 0.2, 0.1, 0.2


class MemoryAttention(nn.Module):
    """x + A(x), where A attends to x and to what is remembered.

        softmax(q·k / e + Σₙ wₙ(x) bₙ[distance]) v

    The product is divided by e rather than √e (Yang et al. 2022, https://arxiv.org/abs/2203.03466). w is linear in the
    step's features, b a table of M distances.
    """

    def __init__(self, features: int, heads: int, memory: int, scale: float) -> None:
        super().__init__()
        self.heads = heads
        self.memory = memory
        self.query = fan_in(nn.Linear(features, features), QUERY_SCALE)
        self.key = fan_in(nn.Linear(features, features, bias=False), KEY_SCALE)
        self.value = fan_in(nn.Linear(features, features, bias=False), math.sqrt(scale))
        self.output = fan_in(nn.Linear(features, features), math.sqrt(scale))
        self.distance_weights = fan_in(nn.Linear(features, BASIS * heads), WEIGHT_SCALE)
        self.distance_basis = nn.Parameter(torch.randn(BASIS, memory) * BASIS_SCALE)

    def forward(self, x: Tensor, state: Tree, visible: Tensor) -> tuple[Tensor, Tree]:
        """Attends.

        Args:
            x: [B, T, F].
            state: `keys` and `values` of the M steps before, [B, M, F] each.
            visible: [B, T, K] bool, what is of a step's episode.

        Returns:
            [B, T, F], and the state after the last step.
        """
        keys = torch.cat([state["keys"], self.key(x)], 1)
        values = torch.cat([state["values"], self.value(x)], 1)
        bias = self._distance_bias(x).masked_fill(~visible.unsqueeze(1), -math.inf)
        query, key, value = (self._split(each) for each in (self.query(x), keys, values))
        heads = functional.scaled_dot_product_attention(query, key, value, bias, scale=self.heads / x.shape[-1])
        after = {"keys": keys[:, -self.memory :], "values": values[:, -self.memory :]}
        return x + self.output(heads.transpose(1, 2).flatten(2)), after

    def _distance_bias(self, x: Tensor) -> Tensor:
        """[B, h, T, K], -∞ outside the band of M distances."""
        return banded(self._split(self.distance_weights(x)) @ self.distance_basis)

    def _split(self, x: Tensor) -> Tensor:
        """[B, X, h · size] to [B, h, X, size]."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
