from typing import Any

import pytest
import torch
from tests.minefleet.policies.vpt.published import net_kwargs, net_kwargs_1x

from minefleet.core.errors import ConfigError
from minefleet.policies.vpt import PRESETS, VPTArchitecture, VPTPolicy
from minefleet.policies.vpt.architecture import changed, from_kwargs

HEAD = {"temperature": 2.0}


@pytest.mark.parametrize(("size", "millions"), [("1x", 71.0), ("2x", 248.5), ("3x", 532.5)])
def test_the_published_sizes_have_the_published_numbers_of_parameters(size: str, millions: float) -> None:
    with torch.device("meta"):
        policy = VPTPolicy(PRESETS[size])
    assert round(sum(parameter.numel() for parameter in policy.parameters()) / 1e6, 1) == millions


def test_the_arguments_of_the_published_sizes_make_the_presets() -> None:
    assert from_kwargs(net_kwargs_1x(), HEAD) == PRESETS["1x"]
    assert from_kwargs(net_kwargs(hidden_size=2048, heads=16, blocks=4, width=8, image=128), HEAD) == PRESETS["2x"]


def test_vpt_arguments_that_nothing_reads_are_ignored() -> None:
    assert from_kwargs(net_kwargs() | {"obs_processing_width": 256, "input_shape": {}}, HEAD) == from_kwargs(
        net_kwargs(), HEAD
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recurrence_type": "multi_layer_lstm"}, "recurrence_type must be 'transformer'"),
        ({"attention_mask_style": "none"}, "attention_mask_style must be 'clipped_causal'"),
        ({"use_pointwise_layer": False}, "use_pointwise_layer must be True"),
        ({"img_statistics": "somewhere.npz"}, "img_statistics must be None"),
        ({"active_reward_monitors": {"log": 1}}, "active_reward_monitors must be None"),
        ({"init_norm_kwargs": {"batch_norm": True}}, "init_norm_kwargs must be group_norm_groups=1"),
        ({"init_norm_kwargs": 3}, "init_norm_kwargs must be a dict"),
        ({"impala_kwargs": {"pool": False}}, "impala_kwargs may have post_pool_groups=1"),
        ({"attention_heads": 7}, "7 heads must divide its hidden_size, got 64"),
        ({"timesteps": 256}, "memory must be from 1 to 16384, got 0"),
        ({"hidsize": "wide"}, "none of VPT's"),
        ({"img_shape": [128, 128]}, "none of VPT's"),
    ],
)
def test_vpt_arguments_of_another_network_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_kwargs(net_kwargs() | change, HEAD)


def test_vpt_arguments_that_lack_one_are_refused_by_name() -> None:
    net = net_kwargs()
    del net["hidsize"]
    with pytest.raises(ConfigError, match="the network's arguments lack 'hidsize'"):
        from_kwargs(net, HEAD)


@pytest.mark.parametrize("size", PRESETS)
def test_vpt_architecture_reads_back_equal(size: str) -> None:
    assert VPTArchitecture.from_dict(PRESETS[size].to_dict()) == PRESETS[size]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 3}, "has no 'width'"),
        ({"blocks": "many"}, "blocks must be of type int, got 'many'"),
        ({"norm_after_pool": 1}, "norm_after_pool must be of type bool, got 1"),
        ({"channels": [1, 2.5, 3]}, "channels must be a list of integers"),
        ({"channels": [1, 2]}, "channels must be three numbers"),
        ({"temperature": 0}, "temperature must be > 0"),
    ],
)
def test_vpt_architecture_change_that_makes_no_network_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed(PRESETS["tiny"], change)
