"""Run by an interpreter that has MineStudio: what its VPT makes of random weights and random episodes.

    minestudio_vpt.py ARGUMENTS.json OUT.pt

ARGUMENTS has `net` (the network's keyword arguments), `cuts` (lengths of the chunks), `batch`, `first` (pairs of row
and step) and `seed`. OUT has weights, inputs, and what came of them.
"""

import json
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def policy_class() -> Any:
    """MineStudio's `VPTPolicy`, without what else its `models` import (torchvision, timm, transformers)."""
    spec = find_spec("minestudio")
    assert spec is not None
    assert spec.submodule_search_locations
    package = types.ModuleType("minestudio.models")
    package.__path__ = [str(Path(spec.submodule_search_locations[0]) / "models")]
    sys.modules["minestudio.models"] = package
    from minestudio.models.vpt.body import VPTPolicy

    return VPTPolicy


def main(arguments: dict[str, Any], out: str) -> None:
    """Writes OUT."""
    torch.manual_seed(arguments["seed"])
    policy = policy_class()(policy_kwargs=arguments["net"], temperature=2.0).eval()
    statistics = policy.value_head.normalizer
    for parameter, value in ((statistics.running_mean, 0.3), (statistics.running_mean_sq, 1.0)):
        parameter.data.fill_(value)
    statistics.debiasing_term.data.fill_(0.5)
    batch, steps = arguments["batch"], sum(arguments["cuts"])
    image = torch.randint(0, 256, (batch, steps, *arguments["net"]["img_shape"]), dtype=torch.uint8)
    first = torch.zeros(batch, steps, dtype=torch.bool)
    for row, step in arguments["first"]:
        first[row, step] = True
    with torch.inference_mode():
        outputs, state = run(policy, image, first, arguments["cuts"])
    torch.save({"weights": policy.state_dict(), "image": image, "first": first, "state": state, **outputs}, out)


def run(policy: Any, image: Tensor, first: Tensor, cuts: list[int]) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Outputs of all chunks, joined along time, and the state after the last one."""
    state = policy.initial_state(len(image))
    made: list[dict[str, Tensor]] = []
    for seen, starts in zip(torch.split(image, cuts, 1), torch.split(first, cuts, 1), strict=True):
        (features, _), state = policy.net({"image": seen}, state, context={"first": starts})
        logits, value = policy.pi_head(features), policy.value_head(features)
        made.append(
            {
                "buttons": logits["buttons"].squeeze(2),
                "camera": logits["camera"].squeeze(2),
                "value": value.squeeze(2),
                "reward_units": policy.value_head.denormalize(value).squeeze(2),
                "entropy": policy.pi_head.entropy(logits),
            }
        )
    return {key: torch.cat([each[key] for each in made], 1) for key in made[0]}, state


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
