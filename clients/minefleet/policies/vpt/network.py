"""Images to features that remember: convolutions, then a transformer over time.

    image ─▶ vision ─▶ blocks: norm ─▶ attention (+) ─▶ two layers (+) ─▶ ReLU ─▶ dense ─▶ norm ─▶ features

`MinecraftPolicy` of `lib/policy.py` and `ResidualRecurrentBlock` of `lib/util.py` in OpenAI's Video-Pre-Training.

Shape legend: B = environments or fragments, T = steps, M = frames of memory, F = features.
"""

import math

import torch
from torch import Tensor, nn

from minefleet.core.tree import Tree
from minefleet.policies.vpt.architecture import VPTArchitecture
from minefleet.policies.vpt.attention import MemoryAttention
from minefleet.policies.vpt.memory_masks import episodes, same_episode, still_remembered
from minefleet.policies.vpt.normed_layers import fan_in, normed_linear
from minefleet.policies.vpt.vision import Vision


class Block(nn.Module):
    """Attention and two dense layers. What is added to the attention's output is its normalised input."""

    def __init__(self, architecture: VPTArchitecture) -> None:
        super().__init__()
        size, wide = architecture.hidden_size, architecture.hidden_size * architecture.pointwise_ratio
        scale = 1 / math.sqrt(2 * architecture.blocks)
        self.norm = nn.LayerNorm(size)
        self.attention = MemoryAttention(size, architecture.heads, architecture.memory, scale)
        self.widen = normed_linear(size, wide)
        self.narrow = fan_in(nn.Linear(wide, size), scale)

    def forward(self, x: Tensor, state: Tree, visible: Tensor) -> tuple[Tensor, Tree]:
        """See `MemoryAttention.forward`."""
        x, state = self.attention(self.norm(x), state, visible)
        return x + self.narrow(self.widen(x)), state


class Network(nn.Module):
    """Images [B, T, H, W, C] to features [B, T, F]."""

    def __init__(self, architecture: VPTArchitecture) -> None:
        super().__init__()
        size = architecture.hidden_size
        self.memory, self.hidden_size = architecture.memory, size
        self.vision = Vision(architecture)
        self.norm_before_blocks = nn.LayerNorm(size) if architecture.norm_before_blocks else nn.Identity()
        self.blocks = nn.ModuleList([Block(architecture) for _ in range(architecture.blocks)])
        self.dense = normed_linear(size, size)
        self.norm = nn.LayerNorm(size)

    def initial_state(self, batch: int) -> Tree:
        """`remembered`, [B, M] bool, False, and per block the `keys` and `values` of nothing, [B, M, F]."""
        like = next(self.parameters())
        state: Tree = {"remembered": like.new_zeros(batch, self.memory, dtype=torch.bool)}
        for index in range(len(self.blocks)):
            shape = (batch, self.memory, self.hidden_size)
            state[f"block{index}"] = {name: like.new_zeros(shape) for name in ("keys", "values")}
        return state

    def forward(self, image: Tensor, state: Tree, first: Tensor) -> tuple[Tensor, Tree]:
        """Runs over a chunk at once.

        Args:
            image: [B, T, H, W, C] uint8.
            state: As `initial_state`, before step 0.
            first: [B, T] bool, what was before this step is not seen; True anywhere.

        Returns:
            [B, T, F], and the state after the last step.
        """
        x = self.norm_before_blocks(self.vision(image.flatten(0, 1)).unflatten(0, first.shape))
        episode = episodes(state["remembered"], first)
        visible = same_episode(episode, first.shape[1])
        after: Tree = {"remembered": still_remembered(episode, self.memory)}
        for index, block in enumerate(self.blocks):
            x, after[f"block{index}"] = block(x, state[f"block{index}"], visible)
        return self.norm(self.dense(x.relu())), after
