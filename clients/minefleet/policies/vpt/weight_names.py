"""OpenAI's and MineStudio's names for the weights, and ours."""

import re
from collections.abc import Mapping

from torch import Tensor

PREFIX = "mine_policy."
"""Prefix of MineStudio's offline trainer."""
NORMALIZER = "value_head.normalizer."
NORMALIZER_NAMES = tuple(NORMALIZER + name for name in ("running_mean", "running_mean_sq", "debiasing_term"))
MIN_WEIGHT = 1e-5
MIN_VARIANCE = 1e-2
"""Lower bound of their normaliser's statistics."""

_RULES = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"^net\.img_process\.cnn\.(stacks|dense)\b", r"network.vision.\1"),
        (r"^net\.img_process\.linear\b", "network.vision.last"),
        (r"\.stacks\.0\.firstconv\.layer\b", ".stacks.0.first.0"),
        (r"\.firstconv\b", ".first"),
        (r"(\.stacks\.\d+)\.n\b", r"\1.norm"),
        (r"\.conv0\b", ".first"),
        (r"\.conv1\b", ".second"),
        (r"^net\.pre_lstm_ln\b", "network.norm_before_blocks"),
        (r"^net\.recurrent_layer\.blocks\b", "network.blocks"),
        (r"\.pre_r_ln\b", ".norm"),
        (r"\.mlp0\b", ".widen"),
        (r"\.mlp1\.layer\b", ".narrow"),
        (r"\.r\.orc_block\.b_nd$", ".attention.distance_basis"),
        (r"\.r\.orc_block\.r_layer\b", ".attention.distance_weights"),
        (r"\.r\.orc_block\.q_layer\b", ".attention.query"),
        (r"\.r\.orc_block\.k_layer\b", ".attention.key"),
        (r"\.r\.orc_block\.v_layer\b", ".attention.value"),
        (r"\.r\.orc_block\.proj_layer\b", ".attention.output"),
        (r"^net\.lastlayer\b", "network.dense"),
        (r"^net\.final_ln\b", "network.norm"),
        (r"^pi_head\.(buttons|camera)\.linear_layer\b", r"action_head.heads.key_\1.linear"),
        (r"^value_head\.linear\b", "value_head"),
    )
)


def our_name(theirs: str) -> str:
    """Our name of a tensor; one that is not theirs stays as it is."""
    for pattern, ours in _RULES:
        theirs = pattern.sub(ours, theirs)
    return theirs


def our_weights(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights by our names, the statistics of their value normaliser as those of `ValueNorm`."""
    named = {name.removeprefix(PREFIX): tensor for name, tensor in theirs.items()}
    weights = {our_name(name): tensor for name, tensor in named.items() if not name.startswith(NORMALIZER)}
    statistics = [named[name] for name in NORMALIZER_NAMES if name in named]
    return weights | our_value_norm(*statistics) if len(statistics) == len(NORMALIZER_NAMES) else weights


def our_value_norm(running_mean: Tensor, running_mean_sq: Tensor, debiasing_term: Tensor) -> dict[str, Tensor]:
    """The statistics by which `ValueNorm` denormalises as `NormalizeEwma` does.

        μ = running_mean / w        σ² = running_mean_sq / w - μ²        w = debiasing_term

    Args:
        running_mean: [1], moving average of the targets, from 0.
        running_mean_sq: [1], of their squares.
        debiasing_term: [], how much of either is data.
    """
    weight = debiasing_term.double()
    share = weight.clamp_min(MIN_WEIGHT)
    mean = running_mean.double().reshape(()) / share
    variance = (running_mean_sq.double().reshape(()) / share - mean.square()).clamp_min(MIN_VARIANCE)
    return {"value_norm.mean": mean, "value_norm.variance": variance, "value_norm.weight": weight.reshape(())}
