"""Images to features: the residual convolutions of IMPALA (Espeholt et al. 2018, figure 3, right), as VPT has them.

`ImpalaCNN` of `lib/impala_cnn.py` and `ImgObsProcess` of `lib/policy.py` in OpenAI's Video-Pre-Training.

Shape legend: N = images, H and W = their height and width, C = channels, F = features.
"""

import math

from torch import Tensor, nn
from torch.nn import functional

from minefleet.policies.layers.encoders import Pixels
from minefleet.policies.vpt.architecture import VPTArchitecture
from minefleet.policies.vpt.normed_layers import fan_in, normed_conv, normed_linear

RESIDUAL_BLOCKS = 2
DENSE_SCALE = 1.4


class ResidualBlock(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, channels: int, scale: float) -> None:
        super().__init__()
        self.first = normed_conv(channels, channels, scale)
        self.second = normed_conv(channels, channels, scale)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W]."""
        return x + self.second(self.first(x))  # type: ignore[no-any-return]  # A module's result has no type.


class Stack(nn.Module):
    """A convolution, pooling to half the height and width, rounded up, and residual blocks."""

    def __init__(self, first: nn.Module, norm: nn.Module, channels: int, scale: float) -> None:
        super().__init__()
        self.first = first
        self.norm = norm
        self.blocks = nn.Sequential(*[ResidualBlock(channels, scale) for _ in range(RESIDUAL_BLOCKS)])

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, channels, ⌈H / 2⌉, ⌈W / 2⌉]."""
        pooled = functional.max_pool2d(self.first(x), 3, stride=2, padding=1)
        return self.blocks(self.norm(pooled))  # type: ignore[no-any-return]  # A module's result has no type.


class Vision(nn.Module):
    """Images [N, H, W, C] of bytes to features [N, hidden_size]."""

    def __init__(self, architecture: VPTArchitecture) -> None:
        super().__init__()
        height, width, channels = architecture.image_shape
        scale = math.sqrt(math.sqrt(len(architecture.channels)) / math.sqrt(RESIDUAL_BLOCKS))
        stacks: list[nn.Module] = []
        for size in architecture.channels:
            first = normed_conv(channels, size) if stacks else _first_conv(channels, size)
            norm = nn.GroupNorm(1, size) if architecture.norm_after_pool else nn.Identity()
            stacks.append(Stack(first, norm, size, scale))
            height, width, channels = (height + 1) // 2, (width + 1) // 2, size
        self.pixels = Pixels()
        self.stacks = nn.Sequential(*stacks)
        self.dense = normed_linear(height * width * channels, architecture.dense_size, DENSE_SCALE)
        self.last = normed_linear(architecture.dense_size, architecture.hidden_size)

    def forward(self, image: Tensor) -> Tensor:
        """[N, H, W, C] uint8 to [N, hidden_size]."""
        maps: Tensor = self.stacks(self.pixels(image))
        return self.last(self.dense(maps.flatten(1)))  # type: ignore[no-any-return]  # A module's result has no type.


def _first_conv(channels: int, size: int) -> nn.Module:
    """The convolution that sees the pixels, which are not normalised."""
    return nn.Sequential(fan_in(nn.Conv2d(channels, size, 3, padding=1), 1.0), nn.ReLU(inplace=True))
