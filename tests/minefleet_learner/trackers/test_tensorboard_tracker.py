"""TensorBoard's files hold the run, and nothing that a killed learner did beyond its checkpoint."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from tests.minefleet_learner.trackers.conftest import MakeTracked

from minefleet_actor.video.mp4 import Mp4
from minefleet_learner.trackers.tensorboard_tracker import MAX_FRAMES, MAX_SIDE, TensorBoardTracker, as_gif

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def events(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return found


def scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(directory).Scalars(name)]


def test_start_after_a_checkpoint_drops_what_was_logged_beyond_it(tmp_path: Path, make_tracked: MakeTracked) -> None:
    of_checkpoint = [{"loss/entropy": 200.0}]
    for start, at_step, steps in ((0, (), (100, 200, 200, 300, 400)), (200, of_checkpoint, (290, 390))):
        tracker = TensorBoardTracker()
        tracker.start(make_tracked(step=start, at_step=at_step))
        for step in steps:
            tracker.log({"loss/entropy": float(step + start)}, step)
        tracker.close()
    assert scalars(tmp_path, "loss/entropy") == [(100, 100), (200, 200), (290, 490), (390, 590)]


def test_start_logs_the_configuration_as_text(tmp_path: Path, make_tracked: MakeTracked) -> None:
    tracker = TensorBoardTracker()
    tracker.start(make_tracked(project="mine"))
    tracker.close()
    (event,) = events(tmp_path).Tensors("config/text_summary")
    (text,) = event.tensor_proto.string_val
    assert "project: mine" in text.decode()


def film(path: Path, frames: int, fps: int) -> Path:
    video = Mp4(path, (360, 640, 3), fps)
    for number in range(frames):
        video.add(np.full((360, 640, 3), 7 * number % 251, np.uint8), number)
    video.close()
    return path


@pytest.mark.parametrize(
    ("frames", "kept", "frame_ms"), [(10, 10, 50), (2 * MAX_FRAMES + 1, MAX_FRAMES // 3 * 2 + 1, 150)]
)
def test_as_gif_is_small_and_takes_as_long_as_the_video(tmp_path: Path, frames: int, kept: int, frame_ms: int) -> None:
    data, size = as_gif(film(tmp_path / "a.mp4", frames, 20))
    gif = Image.open(io.BytesIO(data))
    assert (gif.format, gif.size, size) == ("GIF", (MAX_SIDE, 180), (MAX_SIDE, 180))
    assert (sum(1 for _ in ImageSequence.Iterator(gif)), gif.info["duration"]) == (kept, frame_ms)


def test_log_video_adds_an_image_at_its_step(tmp_path: Path, make_tracked: MakeTracked) -> None:
    tracker = TensorBoardTracker()
    tracker.start(make_tracked())
    tracker.log_video("video/dig", film(tmp_path / "a.mp4", 4, 20), "version 3", 640)
    tracker.close()
    (event,) = events(tmp_path).Images("video/dig")
    assert (event.step, event.width, event.height) == (640, MAX_SIDE, 180)
    assert event.encoded_image_string.startswith(b"GIF89a")
