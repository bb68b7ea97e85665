"""The mapping of VPT's actions, against MineStudio's copy of OpenAI's, which its own interpreter runs."""

import subprocess
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.interpreters import minestudio_python

from minefleet_env.minecraft import actions

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
np.savez(
    sys.argv[1],
    names=np.array(Buttons.ALL),
    pressed=whole["buttons"].astype(np.uint8),
    bins=whole["camera"].astype(np.uint8),
    bin_degrees=transformer.undiscretize_camera(np.arange(11)),
)
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    path = tmp_path_factory.mktemp("actions") / "tables.npz"
    subprocess.run([minestudio_python(), "-c", DUMP, str(path)], check=True, capture_output=True)
    with np.load(path) as tables:
        return dict(tables)


def test_to_engine_maps_every_action_to_the_published_keys_and_mouse(theirs: Tables) -> None:
    assert list(actions.BUTTONS) == theirs["names"].tolist()
    pressed, bins = (theirs[name].reshape(actions.NUM_BUTTONS, actions.NUM_CAMERA, -1) for name in ("pressed", "bins"))
    # Each value of one with some of the other.
    pairs = {(buttons, buttons % actions.NUM_CAMERA) for buttons in range(actions.NUM_BUTTONS)}
    pairs |= {(buttons, camera) for buttons in (1, 2, 8640) for camera in range(actions.NUM_CAMERA)}
    for buttons, camera in pairs:
        sent = actions.to_engine({"buttons": np.int64(buttons), "camera": np.array([camera])})
        assert [sent[key] for key in actions.BUTTONS] == pressed[buttons, camera].tolist()
        np.testing.assert_allclose(sent["camera"], theirs["bin_degrees"][bins[buttons, camera]], rtol=1e-15, atol=0)


def test_to_engine_of_an_action_of_arrays_returns_a_new_dict_with_two_angles() -> None:
    sent = actions.to_engine({"buttons": np.array([1]), "camera": np.array([115])})
    assert set(sent) == {*actions.BUTTONS, "camera"}
    assert sent["camera"].tolist() == [10.0, 0.0]


@pytest.mark.parametrize("action", [{"buttons": 8641}, {"buttons": 0, "camera": 121}, {"buttons": 0.5}])
def test_to_engine_refuses_an_action_out_of_range(action: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be an integer from 0 to (8640|120), got"):
        actions.to_engine({"camera": 0, **action})


def test_null_action_presses_no_key_and_leaves_the_camera_at_rest() -> None:
    sent = actions.to_engine({"buttons": 0, "camera": actions.NULL_CAMERA})
    assert not any(sent[key] for key in actions.BUTTONS)
    assert sent["camera"].tolist() == [0.0, 0.0]
