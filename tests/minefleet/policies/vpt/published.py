"""VPT's arguments and weights as the published files have them."""

from typing import Any

import torch
from torch import Tensor

from minefleet.policies.vpt import VPTPolicy
from minefleet.policies.vpt.weight_names import our_name


def net_kwargs(
    *, hidden_size: int = 64, heads: int = 4, blocks: int = 2, width: float = 0.25, image: int = 32
) -> dict[str, Any]:
    """The network's keyword arguments: those of OpenAI's 2x but for some sizes; tiny ones where none are given."""
    return {
        "attention_heads": heads,
        "attention_mask_style": "clipped_causal",
        "attention_memory_size": 256,
        "diff_mlp_embedding": False,
        "hidsize": hidden_size,
        "img_shape": [image, image, 3],
        "impala_chans": [16, 32, 32],
        "impala_kwargs": {"post_pool_groups": 1},
        "impala_width": width,
        "init_norm_kwargs": {"batch_norm": False, "group_norm_groups": 1},
        "n_recurrence_layers": blocks,
        "only_img_input": True,
        "pointwise_ratio": 4,
        "pointwise_use_activation": False,
        "recurrence_is_residual": True,
        "recurrence_type": "transformer",
        "timesteps": 128,
        "use_pointwise_layer": True,
        "use_pre_lstm_ln": False,
    }


def net_kwargs_1x() -> dict[str, Any]:
    """Those of the smallest published network."""
    return net_kwargs(hidden_size=1024, heads=8, blocks=4, width=4, image=128)


def model_file(net: dict[str, Any]) -> dict[str, Any]:
    """The contents of a `.model` file."""
    return {"model": {"args": {"net": {"args": net}, "pi_head_opts": {"temperature": 2.0}}}}


def their_names(blocks: int) -> list[str]:
    """The tensors of a network, in OpenAI's order."""
    cnn, normed = "net.img_process.cnn.", ("norm.weight", "norm.bias", "layer.weight")
    names = ["net.img_process.cnn.stacks.0.firstconv.layer.weight", "net.img_process.cnn.stacks.0.firstconv.layer.bias"]
    names += [f"{cnn}stacks.{stack}.firstconv.{part}" for stack in (1, 2) for part in normed]
    for stack in range(3):
        names += [f"{cnn}stacks.{stack}.n.{part}" for part in ("weight", "bias")]
        names += [
            f"{cnn}stacks.{stack}.blocks.{block}.conv{conv}.{part}"
            for block in (0, 1)
            for conv in (0, 1)
            for part in normed
        ]
    names += [f"{cnn}dense.{part}" for part in normed] + [f"net.img_process.linear.{part}" for part in normed]
    for block in range(blocks):
        names += [f"net.recurrent_layer.blocks.{block}.{part}" for part in BLOCK]
    names += [f"net.lastlayer.{part}" for part in normed] + ["net.final_ln.weight", "net.final_ln.bias"]
    names += [f"pi_head.{key}.linear_layer.{part}" for key in ("buttons", "camera") for part in ("weight", "bias")]
    return [*names, "value_head.linear.weight", "value_head.linear.bias"]


BLOCK = (
    *("mlp0.norm.weight", "mlp0.norm.bias", "mlp0.layer.weight", "mlp1.layer.weight", "mlp1.layer.bias"),
    *("pre_r_ln.weight", "pre_r_ln.bias", "r.orc_block.b_nd", "r.orc_block.q_layer.weight"),
    *("r.orc_block.q_layer.bias", "r.orc_block.k_layer.weight", "r.orc_block.v_layer.weight"),
    *("r.orc_block.proj_layer.weight", "r.orc_block.proj_layer.bias", "r.orc_block.r_layer.weight"),
    "r.orc_block.r_layer.bias",
)


def their_weights(policy: VPTPolicy) -> dict[str, Tensor]:
    """A policy's weights as OpenAI's files have them, with statistics of a value normaliser."""
    ours = policy.state_dict()
    weights = {name: ours[our_name(name)].clone() for name in their_names(policy.architecture.blocks)}
    statistics = {"running_mean": torch.tensor([0.3]), "running_mean_sq": torch.tensor([1.0])}
    statistics["debiasing_term"] = torch.tensor(0.5)
    return weights | {f"value_head.normalizer.{name}": tensor for name, tensor in statistics.items()}
