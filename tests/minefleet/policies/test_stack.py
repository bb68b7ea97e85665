"""Layers in a row: packed they compute what torch's do, and where they cannot be packed, torch's do it."""

import pytest
import torch
from torch import Tensor, nn

from minefleet.policies import dense, stack
from minefleet.policies.dense import Dense
from minefleet.policies.stack import Stack


def layers() -> list[nn.Module]:
    """A ReLU after a layer that can be packed, after one that cannot, and none after one that can."""
    torch.manual_seed(0)
    return [
        nn.Conv2d(3, 8, 4, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 64, 3),
        nn.Tanh(),
        nn.Flatten(),
        Dense(64 * 5 * 5, 512),
        nn.ReLU(),
        Dense(512, 6),
        nn.ReLU(),
    ]


def images() -> Tensor:
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def packed() -> Stack:
    made = Stack(*layers())
    made.pack()
    return made


@pytest.mark.parametrize("is_faster", [True, False])
def test_packed_layers_compute_what_torchs_do(is_faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "ONEDNN_IS_FASTER", is_faster)
    plain, ours = nn.Sequential(*layers()), packed()
    assert len(ours.passes) == (7 if is_faster else 8)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images()), plain(images()), rtol=1e-5, atol=1e-6)


def test_what_is_not_packed_yet_has_a_gradient() -> None:
    made = Stack(*layers())
    made(images()).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_rounded_layers_are_torchs() -> None:
    ours, plain = packed(), nn.Sequential(*layers())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(images()), plain(images()))


def test_without_the_operations_layers_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_CONVOLVE", None)
    monkeypatch.setattr(dense, "MULTIPLY", None)
    ours, plain = packed(), nn.Sequential(*layers())
    assert len(ours.passes) == len(plain)
    with torch.inference_mode():
        assert torch.equal(ours(images()), plain(images()))


def test_new_weights_are_what_is_computed_with_once_they_are_packed() -> None:
    ours, plain = packed(), nn.Sequential(*layers())
    for parameter in plain.parameters():
        nn.init.normal_(parameter, std=0.1)
    ours.load_state_dict(plain.state_dict())
    ours.pack()
    with torch.inference_mode():
        torch.testing.assert_close(ours(images()), plain(images()), rtol=1e-5, atol=1e-5)
