"""Pictures of every form that environments show."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.core.schema import Leaf
from minefleet_actor.video.picture import MIN_VIDEO_EDGE, Caption, draw, pixel_path, to_rgb

CAPTION = Caption(step=7, episode_return=1.5, reward=0.5, value=2.25, version=3, task="dig")


def box(*shape: int, dtype: str = "uint8") -> Leaf:
    return Leaf(kind="box", shape=shape, dtype=dtype)


@given(height=st.integers(8, 300), width=st.integers(8, 300), channels=st.sampled_from([1, 3]))
def test_the_frame_is_enlarged_by_a_whole_factor_above_the_bar_in_an_even_picture(
    height: int, width: int, channels: int
) -> None:
    frame = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
    picture = draw(frame, CAPTION)
    factor = -(-MIN_VIDEO_EDGE // min(height, width))
    assert picture.shape[0] % 2 == picture.shape[1] % 2 == 0
    assert picture.shape[1] >= MIN_VIDEO_EDGE
    shown = picture[: height * factor : factor, : width * factor : factor]
    assert np.array_equal(shown, np.broadcast_to(frame, (height, width, 3)))
    assert picture.shape[0] > height * factor + 40


@pytest.mark.parametrize(
    "change",
    [{"step": 8}, {"episode_return": 9.0}, {"reward": -1.0}, {"value": None}, {"version": 4}, {"task": "climb"}],
    ids=str,
)
def test_picture_bar_shows_every_number_of_the_caption(change: dict[str, Any]) -> None:
    frame = np.zeros((64, 64, 3), np.uint8)
    names = CAPTION.__slots__
    other = Caption(**({name: getattr(CAPTION, name) for name in names} | change))
    one, two = draw(frame, CAPTION), draw(frame, other)
    assert np.array_equal(one[:256], two[:256])
    assert not np.array_equal(one[256:], two[256:])


@pytest.mark.parametrize(
    ("shape", "newest"),
    [
        ((40, 50), np.s_[:, :, None]),
        ((40, 50, 1), np.s_[:]),
        ((40, 50, 3), np.s_[:]),
        ((40, 50, 4), np.s_[:, :, 3:]),
        ((40, 50, 12), np.s_[:, :, 9:]),
        ((4, 40, 50, 3), np.s_[3]),
        ((4, 40, 50, 1), np.s_[3]),
    ],
    ids=str,
)
def test_to_rgb_of_a_stack_of_frames_shows_the_newest(shape: tuple[int, ...], newest: Any) -> None:
    frame = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(to_rgb(frame), np.broadcast_to(frame[newest], (40, 50, 3)))


def test_to_rgb_of_a_frame_with_channels_first_moves_them_last() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (3, 40, 50), np.uint8)
    assert np.array_equal(to_rgb(frame), np.moveaxis(frame, 0, -1))


def test_the_largest_picture_of_an_observation_is_filmed_and_floats_and_text_never() -> None:
    obs = {
        "map": box(20, 20, 3),
        "image": box(360, 640, 3),
        "depth": box(999, 999, dtype="float32"),
        "text": Leaf(kind="text", shape=(9999,), dtype="uint8"),
    }
    assert pixel_path(obs) == "image"
    assert pixel_path(box(84, 84, 1)) == ""
    assert pixel_path({"vector": box(4, dtype="float32"), "bits": box(4, 4, 3)}) is None
