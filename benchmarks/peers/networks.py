"""The networks of `benchmarks/training.py` in plain torch, for peers that take any module."""

import torch
from torch import nn

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (128, 3, 2))
"""Channels, size and stride: those of Sample Factory's `convnet_simple`."""


class Body(nn.Module):
    """From observations, [..., 4] or frames [..., C, H, W] uint8, to what the heads see, [..., hidden]."""

    def __init__(self, case):
        super().__init__()
        self._has_frames = case.has_frames
        if not case.has_frames:
            first, second = nn.Linear(4, case.hidden), nn.Linear(case.hidden, case.hidden)
            self._layers = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())
            return
        layers, (channels, side) = [], case.frame
        for to_channels, size, stride in CONVOLUTIONS:
            layers += [nn.Conv2d(channels, to_channels, size, stride), nn.ReLU(inplace=True)]
            channels, side = to_channels, (side - size) // stride + 1
        layers += [nn.Flatten(), nn.Linear(channels * side**2, case.hidden), nn.ReLU(inplace=True)]
        self._layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)

    def forward(self, obs):
        if not self._has_frames:
            return self._layers(obs)
        frames = obs.flatten(0, -4).contiguous(memory_format=torch.channels_last).float() / 255
        return self._layers(frames).unflatten(0, obs.shape[:-3])


def heads(case):
    """Logits and value, from what the body gives."""
    return nn.Linear(case.hidden, case.actions), nn.Linear(case.hidden, 1)
