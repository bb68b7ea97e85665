"""The mapping of VPT's actions, against MineStudio's copy of OpenAI's, which its own interpreter runs."""

import subprocess
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.interpreters import minestudio_python

from minefleet_worker.minecraft import actions

Tables = Mapping[str, NDArray[Any]]
DUMP = """
import sys
import numpy as np
from minestudio.utils.vpt_lib.action_mapping import CameraHierarchicalMapping
from minestudio.utils.vpt_lib.actions import ActionTransformer, Buttons

mapping = CameraHierarchicalMapping(n_camera_bins=11)
transformer = ActionTransformer(
    camera_binsize=2, camera_maxval=10, camera_mu=10.0, camera_quantization_scheme="mu_law"
)
buttons, camera = (grid.reshape(-1, 1) for grid in np.mgrid[:8641, :121])
whole = mapping.to_factored({"buttons": buttons, "camera": camera})

random = np.random.default_rng(0)
pressed = (random.random((20000, 20)) < random.random((20000, 1))).astype(np.int64)
bins = np.where(random.random((20000, 1)) < 0.3, 5, random.integers(0, 11, (20000, 2)))
bins[:121] = np.stack(np.divmod(np.arange(121), 11), axis=-1)
degrees = np.concatenate([np.linspace(-200, 200, 4001), np.linspace(-10, 10, 4001)])
np.savez(
    sys.argv[1],
    names=np.array(Buttons.ALL),
    pressed=whole["buttons"].astype(np.uint8),
    bins=whole["camera"].astype(np.uint8),
    bin_degrees=transformer.undiscretize_camera(np.arange(11)),
    random_pressed=pressed,
    random_bins=bins,
    degrees=degrees,
    degrees_bins=transformer.discretize_camera(degrees),
    **mapping.from_factored({"buttons": pressed.copy(), "camera": bins.copy()}),
)
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    path = tmp_path_factory.mktemp("actions") / "tables.npz"
    subprocess.run([minestudio_python(), "-c", DUMP, str(path)], check=True, capture_output=True)
    with np.load(path) as tables:
        return dict(tables)


def test_every_action_means_the_same_keys_and_mouse_as_published(theirs: Tables) -> None:
    buttons, camera = np.mgrid[:8641, :121]
    pressed, bins = actions.to_factored(buttons.reshape(-1), camera.reshape(-1))
    assert list(actions.BUTTONS) == theirs["names"].tolist()
    np.testing.assert_array_equal(pressed, theirs["pressed"])
    np.testing.assert_array_equal(bins, theirs["bins"])


def test_any_keys_and_mouse_with_conflicts_become_the_same_action_as_published(theirs: Tables) -> None:
    buttons, camera = actions.from_factored(theirs["random_pressed"], theirs["random_bins"])
    np.testing.assert_array_equal(buttons, theirs["buttons"][:, 0])
    np.testing.assert_array_equal(camera, theirs["camera"][:, 0])


def test_degrees_and_bins_are_those_published(theirs: Tables) -> None:
    np.testing.assert_allclose(actions.camera_degrees(np.arange(11)), theirs["bin_degrees"], rtol=1e-15, atol=0)
    np.testing.assert_array_equal(actions.camera_bins(theirs["degrees"]), theirs["degrees_bins"])


def test_every_action_that_can_be_told_apart_comes_back() -> None:
    buttons, camera = (grid.reshape(-1) for grid in np.mgrid[: actions.NUM_BUTTONS, : actions.NUM_CAMERA])
    # Only a camera that turns counts as turning, and the inventory is opened with the camera at rest.
    turns = np.append(np.arange(actions.INVENTORY) % 2 == 1, False)[buttons]
    kept = turns == (camera != actions.NULL_CAMERA)
    back = actions.from_factored(*actions.to_factored(buttons[kept], camera[kept]))
    np.testing.assert_array_equal(back, [buttons[kept], camera[kept]])


@given(st.integers(0, 8640), st.integers(0, 120))
def test_an_action_goes_to_the_engine_and_comes_back(buttons: int, camera: int) -> None:
    sent = actions.to_engine({"buttons": np.array([buttons]), "camera": np.array([camera])})
    assert set(sent) == {*actions.BUTTONS, "camera"}
    assert sent["camera"].shape == (2,)
    back = actions.from_engine(sent)
    again = actions.to_engine(back)
    assert {key: sent[key] for key in actions.BUTTONS} == {key: again[key] for key in actions.BUTTONS}
    if back["buttons"] != actions.INVENTORY:
        assert again["camera"].tolist() == sent["camera"].tolist()


def test_single_actions_mean_what_arrays_of_them_mean() -> None:
    for buttons in range(actions.NUM_BUTTONS):
        camera = buttons % actions.NUM_CAMERA
        pressed, bins = actions.to_factored(buttons, camera)
        sent = actions.to_engine({"buttons": np.int64(buttons), "camera": np.array([camera])})
        assert [sent[key] for key in actions.BUTTONS] == pressed.tolist()
        assert sent["camera"].tolist() == actions.camera_degrees(bins).tolist()


@pytest.mark.parametrize("action", [{"buttons": 8641}, {"buttons": 0, "camera": 121}, {"buttons": 0.5}])
def test_a_single_action_out_of_range_is_refused(action: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be an integer from 0 to (8640|120), got"):
        actions.to_engine({"camera": 0, **action})


def test_nothing_is_done_by_the_first_action_and_a_camera_at_rest() -> None:
    sent = actions.to_engine({"buttons": 0, "camera": actions.NULL_CAMERA})
    assert not any(sent[key] for key in actions.BUTTONS)
    assert sent["camera"].tolist() == [0.0, 0.0]
    assert actions.from_engine({}) == {"buttons": 0, "camera": actions.NULL_CAMERA}


@pytest.mark.parametrize(
    ("buttons", "camera", "message"),
    [
        (8641, 0, "buttons must be from 0 to 8640, got 8641"),
        (-1, 0, "buttons must be from 0 to 8640, got -1"),
        ([0, 0], [3, 121], "camera must be from 0 to 120, got 121"),
        (0.5, 0, "buttons must be an integer, got float64"),
    ],
)
def test_an_action_out_of_range_is_refused_by_name(buttons: Any, camera: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        actions.to_factored(buttons, camera)


def test_keys_and_mouse_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="a camera bin must be from 0 to 10, got 11"):
        actions.from_factored(np.zeros(20), [11, 0])
    with pytest.raises(ValueError, match=r"finite degrees, got \[nan, 0.0\]"):
        actions.from_engine({"camera": np.array([np.nan, 0.0])})
