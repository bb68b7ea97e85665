"""VPT's arguments as `.model` files have them."""

from typing import Any


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
    """What a `.model` file holds."""
    return {"model": {"args": {"net": {"args": net}, "pi_head_opts": {"temperature": 2.0}}}}
