from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import flatten
from minefleet_env import shared_slot_arrays
from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.space_conversion import reader, schema_of, writer

SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": spaces.Box(-2.0, 2.0, (3, 2), np.float32),
    "box of one number": spaces.Box(0, 9, (), np.int32),
    "box in float64": spaces.Box(np.array([-1.0, -0.1]), np.array([1.0, 0.1]), dtype=np.float64),
    "pixels": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "discrete": spaces.Discrete(5),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi-discrete, two axes, with starts": spaces.MultiDiscrete(
        np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [-2, 7]])
    ),
    "multi-binary": spaces.MultiBinary(4),
    "multi-binary, two axes": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"c": spaces.Box(0, 1, (2,), np.float32)})}),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.MultiBinary(2),)))),
}


class Shell(gymnasium.Env[Any, Any]):
    """An environment that has spaces and nothing else."""

    def __init__(self, obs: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self.observation_space = obs
        self.action_space = action


def schema(obs: gymnasium.Space[Any], action: gymnasium.Space[Any] | None = None) -> Schema:
    return Schema.from_dict(schema_of(Shell(obs, spaces.Discrete(2) if action is None else action)))


def rows_of(space: gymnasium.Space[Any], side: str = "obs") -> dict[str, Any]:
    """The rows of one environment for values of this space."""
    plain = schema(space).to_dict() if side == "obs" else schema(spaces.Discrete(2), space).to_dict()
    return {path: array[0, ...] for path, array in getattr(shared_slot_arrays.private(plain, 1), side).items()}


def written(space: gymnasium.Space[Any], value: Any) -> dict[str, Any]:
    """The rows after an observation."""
    rows = rows_of(space)
    writer(space, schema(space).to_dict()["obs"], rows)(value)
    return rows


def acted(space: gymnasium.Space[Any], arrays: dict[str, Any]) -> Any:
    """The action that the rows say."""
    rows = rows_of(space, "action")
    read = reader(space, rows)
    for path, array in arrays.items():
        rows[path][...] = array
    action = read()
    for row in rows.values():
        row[...] = 0
    return action


@pytest.mark.parametrize("name", SPACES)
def test_samples_of_a_space_have_the_shapes_and_ranges_of_its_schema(name: str) -> None:
    space = SPACES[name]
    space.seed(1)
    leaves: dict[str, Leaf] = flatten(schema(space).obs)
    for _ in range(20):
        arrays = written(space, space.sample())
        assert list(arrays) == list(leaves)
        for path, leaf in leaves.items():
            assert arrays[path].shape == leaf.shape
            assert arrays[path].dtype == leaf.dtype
            if leaf.kind != "box":
                assert ((arrays[path] >= 0) & (arrays[path] < np.reshape(leaf.categories, leaf.shape))).all()


@pytest.mark.parametrize("name", SPACES)
def test_an_action_comes_back_from_its_arrays_as_the_space_has_it(name: str) -> None:
    space = SPACES[name]
    space.seed(2)
    for _ in range(20):
        action = space.sample()
        again = acted(space, written(space, action))
        assert space.contains(again)
        for one, other in zip(_arrays(again), _arrays(action), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_schema_leaves_say_what_the_spaces_say() -> None:
    obs = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "angle": spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, 5.0]), dtype=np.float64),
            "tool": spaces.Discrete(7, start=2),
            "flags": spaces.MultiBinary(2),
        }
    )
    leaves = schema(obs).obs
    assert leaves["image"] == Leaf(kind="box", shape=(8, 8, 3), dtype="uint8", low=0.0, high=255.0)
    assert leaves["image"].is_pixels
    assert leaves["angle"] == Leaf(kind="box", shape=(2,), dtype="float32", low=(-1.0, -np.inf), high=(1.0, 5.0))
    assert leaves["tool"] == Leaf(kind="discrete", shape=(), dtype="int64", categories=(7,))
    assert leaves["flags"] == Leaf(kind="multi_discrete", shape=(2,), dtype="int64", categories=(2, 2))


def test_a_box_action_is_clipped_to_the_bounds_and_owned_by_the_environment() -> None:
    space = spaces.Box(-0.1, 0.1, (3,), np.float64)
    action = acted(space, {"": np.array([-5.0, 0.05, 0.1], np.float32)})
    assert space.contains(action)
    np.testing.assert_allclose(action, [-0.1, 0.05, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    "unknown", [spaces.OneOf([spaces.Discrete(2)]), spaces.Graph(spaces.Discrete(2), None), SPACES["box"]]
)
def test_schema_of_an_unknown_space_is_refused_with_the_name_of_its_leaf(unknown: gymnasium.Space[Any]) -> None:
    obs = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), unknown))})
    if isinstance(unknown, spaces.Box):
        assert set(flatten(schema(obs).obs)) == {"a/0", "a/1"}
        return
    with pytest.raises(RefusedError, match=rf"obs/a/1 is a {type(unknown).__name__} space; supported are Box"):
        schema(obs)


@pytest.mark.parametrize("key", ["a/b", "", 7])
def test_keys_that_cannot_be_paths_are_refused(key: Any) -> None:
    with pytest.raises(RefusedError, match=r"action has the key"):
        schema(spaces.Discrete(2), spaces.Dict({key: spaces.Discrete(2)}))


def test_a_space_without_leaves_is_refused() -> None:
    with pytest.raises(RefusedError, match="obs/nothing is an empty Dict"):
        schema(spaces.Dict({"nothing": spaces.Dict({}), "some": spaces.Discrete(2)}))


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for key in sorted(value) for array in _arrays(value[key])]
    if isinstance(value, tuple):
        return [array for item in value for array in _arrays(item)]
    return [np.asarray(value)]


def test_a_text_becomes_its_bytes_with_zeros_after_them() -> None:
    space = spaces.Text(4, charset="abcü")
    assert schema(space).obs == Leaf(kind="text", shape=(8,), dtype="uint8")
    rows = rows_of(space)
    write = writer(space, schema(space).to_dict()["obs"], rows)
    write("übbb")
    assert rows[""].tobytes() == "übbb".encode() + bytes(3)
    write("")
    assert rows[""].tobytes() == bytes(8)


@pytest.mark.parametrize(
    ("text", "message"), [("abcdefghi", "at most 8 bytes, got 9"), (7, "must be a text, got a int")]
)
def test_text_outside_its_space_is_an_error_of_the_environment(text: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        written(spaces.Text(8), text)


def test_schema_of_a_text_action_is_refused() -> None:
    with pytest.raises(RefusedError, match="action/say is a Text space"):
        schema(spaces.Discrete(2), spaces.Dict({"say": spaces.Text(8)}))


class Missions(gymnasium.Space[str]):
    """As MiniGrid has them: strings of a length that the space does not tell."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


def test_writer_takes_a_space_of_strings_without_a_length_for_a_text() -> None:
    assert written(Missions(), "get to the green goal square")[""].tobytes().rstrip(b"\0").endswith(b"goal square")
    with pytest.raises(EnvError, match="must be a text of at most 256 bytes, got 257"):
        written(Missions(), "x" * 257)


class Text(gymnasium.Space[Any]):
    """A text as MineRL has it: an array of strings that does not say how long they get."""

    MAX_STR_LEN = 100


class Enum(spaces.Discrete):
    """A category as MineRL has it: called by names, in alphabetical order."""

    def __init__(self, *values: str) -> None:
        super().__init__(len(values))
        self.values = np.array(sorted(values))


def test_writer_understands_texts_and_enums_of_minerl() -> None:
    assert written(Text((1,)), np.array(["a pig"]))[""].tobytes() == b"a pig" + bytes(395)
    tools = Enum("shovel", "axe", "none")
    assert written(tools, "none")[""] == 1
    assert written(tools, np.array("shovel"))[""] == 2
    assert acted(tools, {"": np.array(0)}) == "axe"
    with pytest.raises(EnvError, match=r"must count categories below \(3,\), got -1"):
        written(tools, "spoon")


BAD: dict[str, tuple[gymnasium.Space[Any], Any, str]] = {
    "shape": (SPACES["box"], np.zeros(3, np.float32), r"must have shape \(3, 2\), got \(3,\)"),
    "float for int": (SPACES["pixels"], np.zeros((4, 5, 3)), "must be uint8, got float64"),
    "nan": (SPACES["box"], np.full((3, 2), np.nan, np.float32), "must be finite"),
    "beyond float32": (SPACES["box in float64"], np.array([1e300, 0.0]), "must be finite"),
    "category beyond": (SPACES["discrete from 3"], 7, r"must count categories below \(4,\), got 4"),
    "category before": (SPACES["discrete from 3"], 2, r"must count categories below \(4,\), got -1"),
    "half a category": (SPACES["discrete"], 1.5, "must be int64, got float64"),
    "category in a list": (SPACES["discrete"], [0, 1], r"must have shape \(\), got \(2,\)"),
    "one of many": (SPACES["multi-discrete"], np.array([1, 3, 0]), r"below \(2, 3, 4\), got \[1 3 0\]"),
    "too few": (SPACES["multi-binary"], np.zeros(3, np.int8), r"must have shape \(4,\), got \(3,\)"),
    "two for a bit": (SPACES["multi-binary"], np.array([0, 2, 0, 0], np.int8), "must count categories below"),
    "missing": (SPACES["dict"], {"a": {"c": np.zeros(2, np.float32)}}, "the observation lacks 'b'"),
    "deep": (SPACES["dict"], {"b": 0, "a": {"c": np.zeros(3, np.float32)}}, "observation 'a/c' must have shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_observation_outside_its_space_is_an_error_of_the_environment(name: str) -> None:
    space, value, message = BAD[name]
    with pytest.raises(EnvError, match=message):
        written(space, value)
