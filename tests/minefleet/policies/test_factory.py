"""Policies from generators: found by name, called as they wish, checked."""

from dataclasses import replace
from pathlib import Path

import pytest

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import ActorCritic, build

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(4,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
)
SOURCE = """
import functools

from minefleet.policies import ActorCritic
from minefleet.core.schema import Leaf, Schema

def with_schema(schema):
    return ActorCritic(schema, features=4)

def without(width=4):
    action = Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,))
    return ActorCritic(Schema(obs=None, action=action), features=width)

def normalised(schema):
    return ActorCritic(schema, features=4, normalize_obs=True)

class Mine(ActorCritic):
    def __init__(self, schema):
        super().__init__(schema, features=4)

def wrong():
    return "policy"

def greedy(schema, checkpoint_path):
    assert checkpoint_path == "here"
    return ActorCritic(schema, features=4)

def annotated(checkpoint_path: str, shown: Schema):
    return greedy(shown, checkpoint_path)

def quoted(checkpoint_path: str, shown: "Schema" = None):
    return greedy(shown, checkpoint_path)

partial = functools.partial(greedy, checkpoint_path="here")
action = Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,))
given = functools.partial(greedy, Schema(obs=None, action=action))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["with_schema", "without", "Mine"])
def test_a_generator_may_take_the_schema_or_nothing_and_may_be_a_class(source: Path, name: str) -> None:
    policy = build(PolicyConfig(generator=f"{source}:{name}"), SCHEMA)
    assert isinstance(policy, ActorCritic)
    assert policy.value_head.in_features == 4


@pytest.mark.parametrize(
    ("key", "given"),
    [("normalize_obs", PolicyConfig(normalize_obs=True)), ("normalize_pixels", PolicyConfig(normalize_pixels=True))],
)
def test_normalisation_is_refused_where_the_policy_of_a_generator_does_none(
    source: Path, key: str, given: PolicyConfig
) -> None:
    assert build(replace(given, generator=f"{source}:normalised"), SCHEMA).obs_norm is not None
    with pytest.raises(ConfigError, match=rf"policy\.{key} is true, and the policy of .*:Mine has no obs_norm"):
        build(replace(given, generator=f"{source}:Mine"), SCHEMA)


def test_generator_that_makes_no_policy_is_refused_by_key_and_type(source: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.generator=.*:wrong made a str"):
        build(PolicyConfig(generator=f"{source}:wrong"), SCHEMA)


def test_a_generator_gets_its_arguments_by_name_and_the_schema_where_it_asks_for_one(source: Path) -> None:
    for name in ("greedy", "annotated", "quoted", "given"):
        policy = build(PolicyConfig(generator=f"{source}:{name}", kwargs={"checkpoint_path": "here"}), SCHEMA)
        assert policy.value_head.in_features == 4
    build(PolicyConfig(generator=f"{source}:partial"), SCHEMA)


@pytest.mark.parametrize("name", ["greedy", "annotated"])
def test_an_argument_that_a_generator_lacks_is_named(source: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.kwargs do not fit .*'checkpoint_path'.*named `schema` or annotated"
    ):
        build(PolicyConfig(generator=f"{source}:{name}"), SCHEMA)
