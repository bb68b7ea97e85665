from pathlib import Path
from typing import Any

import pytest

from minefleet.config import PolicyConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import build
from minefleet.policies.vpt import VPTPolicy

GENERATOR = "minefleet.policies.vpt:generate"


def discrete(categories: int) -> Leaf:
    return Leaf(kind="discrete", shape=(), dtype="int64", categories=(categories,))


def image(*shape: int) -> Leaf:
    return Leaf(kind="box", shape=shape, dtype="uint8", low=0, high=255)


MINECRAFT = Schema(obs={"image": image(32, 32, 3)}, action={"buttons": discrete(8641), "camera": discrete(121)})


def made(schema: Schema = MINECRAFT, **kwargs: Any) -> VPTPolicy:
    policy = build(PolicyConfig(generator=GENERATOR, kwargs=kwargs), schema)
    assert isinstance(policy, VPTPolicy)
    return policy


def test_vpt_generator_makes_the_configured_size() -> None:
    policy = made(size="tiny", architecture={"blocks": 1, "memory": 9})
    assert (policy.architecture.blocks, policy.architecture.memory) == (1, 9)
    assert policy.architecture.image_shape == (32, 32, 3)


def test_vpt_generator_loads_files_beside_the_configuration(model: Path, weights: Path, tmp_path: Path) -> None:
    config = tmp_path / "cows.yaml"
    lines = f"policy: {{generator: '{GENERATOR}', kwargs: {{model_path: {model.name}, weights_path: {weights.name}}}}}"
    config.write_text(lines)
    policy = build(load(str(config)).policy, MINECRAFT)
    assert policy.value_norm.weight.item() == 0.5


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, "needs policy.kwargs.model_path or policy.kwargs.size"),
        ({"size": "tiny", "model_path": "2x.model"}, "one of them"),
        ({"size": "4x"}, "policy.kwargs.size must be one of 1x, 2x, 3x, tiny, got '4x'"),
        ({"size": "tiny", "architecture": {"depth": 3}}, "has no 'depth'"),
        ({"size": "tiny", "colour": 3}, "policy.kwargs do not fit .*'colour'"),
        ({"model_path": "gone.model"}, "cannot read gone.model"),
        ({"size": "tiny", "weights_path": "gone.weights"}, "cannot read gone.weights"),
    ],
)
def test_vpt_generator_refuses_arguments_that_make_no_policy(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**kwargs)


def test_vpt_generator_refuses_a_file_together_with_changes_of_it(model: Path) -> None:
    with pytest.raises(ConfigError, match="the file says it all"):
        made(model_path=str(model), architecture={"blocks": 1})


def test_images_of_another_size_are_refused_with_what_to_do(model: Path) -> None:
    schema = Schema(obs={"image": image(64, 64, 3)}, action=MINECRAFT.action)
    with pytest.raises(ConfigError, match=r"\[32, 32, 3\].*\[64, 64, 3\].*env.wrappers.resize=\[32,32\]"):
        made(schema, model_path=str(model))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(obs=image(32, 32, 3), action=MINECRAFT.action),
        Schema(obs={"pov": image(32, 32, 3)}, action=MINECRAFT.action),
        Schema(obs={"image": image(32, 32, 1)}, action=MINECRAFT.action),
        Schema(obs=MINECRAFT.obs, action=discrete(3)),
        Schema(obs=MINECRAFT.obs, action={"buttons": discrete(8641)}),
        Schema(obs=MINECRAFT.obs, action={"buttons": discrete(8641), "camera": discrete(7)}),
        Schema(obs=MINECRAFT.obs, action=dict(MINECRAFT.action) | {"chat": discrete(2)}),
    ],
)
def test_an_environment_that_vpt_cannot_play_is_refused(schema: Schema) -> None:
    with pytest.raises(ConfigError, match="VPT"):
        made(schema, size="tiny")


def test_arguments_without_a_generator_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"give policy\.generator"):
        PolicyConfig(kwargs={"size": "tiny"})
