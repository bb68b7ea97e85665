"""Files that play: decoded again, frame by frame."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.films import pictures

from minefleet.v1 import episode_pb2
from minefleet_actor.video.episode_video import LEFT_BEHIND_S, VIDEOS_KEPT, Reel, forget_oldest, video_name
from minefleet_actor.video.picture import Caption, draw

FPS = 10
NAME = "version-3-a-0.mp4"


def caption(step: int) -> Caption:
    return Caption(step=step, episode_return=step / 10, reward=0.1, value=1.0, version=3)


def frames(count: int, shape: tuple[int, ...], smooth: bool = True) -> list[Any]:
    """Blocks that change from frame to frame."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (count, *shape), np.uint8)
    return [np.full(shape, 20 * step % 256, np.uint8) if smooth else drawn[step] for step in range(count)]


def film(directory: Path, shown: list[Any], steps: list[int] | None = None, longest_s: int = 60) -> Path:
    reel = Reel(directory, FPS, longest_s=longest_s)
    for step in range(len(shown) - 1) if steps is None else steps:
        reel.add(shown[step], caption(step))
    record = episode_pb2.EpisodeRecord(
        stream="a", length=len(shown) - 1, policy_version=3, episode_return=1.0, task="dig"
    )
    return reel.finish(NAME, shown[-1], 0.5, record)


@pytest.mark.parametrize("shape", [(64, 64, 3), (63, 51, 3), (84, 84, 1), (360, 640, 3), (9, 301, 3)], ids=str)
def test_episode_video_has_every_frame_in_its_place_and_holds_the_last(tmp_path: Path, shape: tuple[int, ...]) -> None:
    shown = frames(12, shape)
    path = film(tmp_path / "videos", shown)
    numbers, decoded = zip(*pictures(path), strict=True)
    assert numbers == (*range(12), 11 + FPS)
    for step in range(11):
        expected = draw(shown[step], caption(step))
        assert decoded[step].shape == expected.shape
        assert abs(decoded[step].astype(int) - expected).mean() < 6
    assert all(abs(one.astype(int) - two).mean() > 3 for one, two in pairwise(decoded[:-1]))
    assert [entry.name for entry in (tmp_path / "videos").iterdir()] == [NAME]


def test_episode_video_with_frames_left_out_keeps_the_others_at_their_times(tmp_path: Path) -> None:
    path = film(tmp_path, frames(12, (64, 64, 3)), steps=[0, 1, 4, 8])
    assert [number for number, _ in pictures(path)] == [0, 1, 4, 8, 11, 11 + FPS]


def test_a_long_episode_is_cut_and_its_last_frame_says_so(tmp_path: Path) -> None:
    shown = frames(40, (64, 64, 3))
    (*_, (before, _), (last, ending)) = pictures(film(tmp_path, shown, longest_s=1))
    assert (before, last) == (FPS, 2 * FPS)
    whole = draw(shown[-1], Caption(step=39, episode_return=1.0, reward=0.5, value=None, version=3, task="dig"))
    assert abs(ending[:256].astype(int) - whole[:256]).mean() < 6
    assert abs(ending[256:].astype(int) - whole[256:]).mean() > 3


def test_episode_video_that_is_discarded_leaves_no_file_and_the_next_begins_anew(tmp_path: Path) -> None:
    reel = Reel(tmp_path, FPS)
    for step, frame in enumerate(frames(60, (64, 64, 3))):
        reel.add(frame, caption(step))
    assert len(list(tmp_path.iterdir())) == 1
    reel.discard()
    assert list(tmp_path.iterdir()) == []
    reel.add(frames(1, (360, 640, 3))[0], caption(0))
    record = episode_pb2.EpisodeRecord(length=1)
    assert next(pictures(reel.finish(NAME, frames(1, (360, 640, 3))[0], 0.0, record)))[1].shape[1] == 640


def test_video_name_of_a_hostile_stream_stays_in_its_directory() -> None:
    assert video_name(3, "../../a/b-1", 4) == "version-3-______a_b-1-4.mp4"


def test_forget_oldest_keeps_the_newest_videos_and_other_files_but_not_dead_recordings(tmp_path: Path) -> None:
    names = [f"version-{version}-s-0.mp4" for version in range(VIDEOS_KEPT + 3)]
    for number, name in enumerate(names):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    for name in ("mine.mp4", ".recording-now.mp4", ".recording-dead.mp4"):
        (tmp_path / name).touch()
    long_ago = (tmp_path / "mine.mp4").stat().st_mtime - LEFT_BEHIND_S - 1
    os.utime(tmp_path / ".recording-dead.mp4", (long_ago, long_ago))
    # As a file that another actor renames between the listing and the look at it.
    (tmp_path / ".recording-renamed.mp4").symlink_to(tmp_path / "gone")
    forget_oldest(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.mp4", ".recording-now.mp4", *names[3:]}
