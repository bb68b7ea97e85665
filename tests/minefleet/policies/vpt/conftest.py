"""Synthetic weights in OpenAI's file formats. Files of the real size are as real as can be had here."""

import pickle
from pathlib import Path

import pytest
import torch
from tests.minefleet.policies.vpt.published import model_file, net_kwargs, their_weights

from minefleet.policies.vpt import VPTPolicy
from minefleet.policies.vpt.architecture import from_kwargs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.model"
    path.write_bytes(pickle.dumps(model_file(net_kwargs())))
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    path = tmp_path / "tiny.weights"
    torch.save(their_weights(VPTPolicy(from_kwargs(net_kwargs(), {"temperature": 2.0}))), path)
    return path
