"""VPT for a configuration: `policy.generator=minefleet.policies.vpt:generate`."""

from collections.abc import Mapping
from typing import Any

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.policies.layers.action_mask_in_observation import check_mask
from minefleet.policies.vpt.architecture import BUTTONS, CAMERA, PRESETS, VPTArchitecture, changed
from minefleet.policies.vpt.vpt_policy import VPTPolicy
from minefleet.policies.vpt.weight_files import load_vpt_policy, make_policy


def generate(
    schema: Schema,
    *,
    model_path: str = "",
    weights_path: str = "",
    size: str = "",
    architecture: Mapping[str, Any] | None = None,
) -> VPTPolicy:
    """Makes a VPT policy; its arguments are `policy.kwargs`.

    Args:
        schema: What the environment shows and takes.
        model_path: A `.model` file, or a directory that `minefleet vpt convert` wrote. Empty where `size` is given.
        weights_path: Weights, see `load_vpt_policy`. Empty for those in the directory, and otherwise random ones.
        size: `1x`, `2x`, `3x` or `tiny`, in place of `model_path`, for images as the environment shows them.
        architecture: Fields of `VPTArchitecture` that differ from those of `size`.

    Raises:
        ConfigError: If a file does not fit, the environment is none that VPT can play, or the arguments contradict.
    """
    image = _check_schema(schema)
    if bool(model_path) == bool(size):
        raise ConfigError(
            f"VPT needs policy.kwargs.model_path or policy.kwargs.size, one of them, got {model_path!r} and {size!r}"
        )
    if model_path:
        if architecture:
            raise ConfigError("policy.kwargs.architecture changes a size; with model_path the file says it all")
        policy = load_vpt_policy(model_path, weights_path or None)
    else:
        policy = make_policy(_sized(size, image, architecture or {}), weights_path or None)
    check_fits(policy, schema)
    return policy


def check_fits(policy: VPTPolicy, schema: Schema) -> None:
    """Refuses an environment that this VPT cannot play.

    Raises:
        ConfigError: Says what differs.
    """
    image, wanted = _check_schema(schema), policy.architecture.image_shape
    if wanted != image.shape:
        raise ConfigError(
            f"this VPT sees images of {list(wanted)}, and the environment's are {list(image.shape)}: "
            f"have it show {wanted[0]} × {wanted[1]}, or set env.wrappers.resize=[{wanted[0]},{wanted[1]}]"
        )


def _sized(size: str, image: Leaf, changes: Mapping[str, Any]) -> VPTArchitecture:
    if size not in PRESETS:
        raise ConfigError(f"policy.kwargs.size must be one of {', '.join(PRESETS)}, got {size!r}")
    return changed(PRESETS[size], {"image_shape": list(image.shape), **changes})


def _check_schema(schema: Schema) -> Leaf:
    """Refuses an environment that VPT cannot play; returns what its image is like."""
    image = schema.obs.get("image") if isinstance(schema.obs, Mapping) else None
    if not isinstance(image, Leaf) or not image.is_pixels or image.shape[2] != 3:
        raise ConfigError("VPT sees `image`, bytes [height, width, 3], in a dict; the environment shows none")
    for key, categories in (("buttons", BUTTONS), ("camera", CAMERA)):
        leaf = schema.action.get(key) if isinstance(schema.action, Mapping) else None
        if not isinstance(leaf, Leaf) or leaf.kind != "discrete" or leaf.categories != (categories,):
            raise ConfigError(
                f"VPT's actions are `buttons` of {BUTTONS} categories and `camera` of {CAMERA}, in a dict"
            )
    if len(schema.action) != 2:
        raise ConfigError(f"VPT's actions are `buttons` and `camera`; the environment takes {sorted(schema.action)}")
    check_mask(schema)
    return image
