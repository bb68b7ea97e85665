import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.core.tree import Tree, flatten, join, tree_map, unflatten

NAMES = st.text("abc_", min_size=1, max_size=3)
TREES = st.recursive(st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8)


@given(TREES)
def test_flatten_and_unflatten_are_inverse(tree: Tree) -> None:
    assert unflatten(flatten(tree)) == tree


@given(TREES)
def test_tree_map_keeps_the_structure(tree: Tree) -> None:
    assert flatten(tree_map(lambda leaf: leaf + 1, tree)) == {path: leaf + 1 for path, leaf in flatten(tree).items()}


def test_tree_map_takes_several_trees_of_one_structure() -> None:
    assert tree_map(lambda a, b: a + b, {"x": 1, "y": {"z": 2}}, {"x": 10, "y": {"z": 20}}) == {"x": 11, "y": {"z": 22}}
    with pytest.raises(KeyError):
        tree_map(lambda a, b: a + b, {"x": 1}, {"y": 1})


def test_join_and_flatten_leave_out_empty_parts_of_paths() -> None:
    assert join("obs", "") == "obs"
    assert join("obs", "image") == "obs/image"
    assert flatten(7) == {"": 7}
