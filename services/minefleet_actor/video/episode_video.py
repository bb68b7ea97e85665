"""One episode on its way to a file. The file is written aside and appears whole."""

import re
import time
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from minefleet.core.atomic_files import sync
from minefleet.v1 import episode_pb2
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.mp4 import Mp4
from minefleet_actor.video.picture import Caption, draw

MAX_VIDEO_S = 600
"""Playing time beyond which a video is cut."""
HOLD_S = 1.0
"""Duration of the last picture."""
VIDEOS_KEPT = 100
"""Videos that a directory keeps, the newest."""
RECORDING_PREFIX = ".recording-"
LEFT_BEHIND_S = 24 * 3600
"""A file under way that nobody has touched for so long was left behind by an actor that died."""


class Reel:
    """Takes an episode's frames in order, then `finish` or `discard`."""

    def __init__(self, directory: Path, fps: int, *, longest_s: int = MAX_VIDEO_S) -> None:
        self._directory = directory
        self._aside = directory / f"{RECORDING_PREFIX}{uuid.uuid4().hex}.mp4"
        self._fps = fps
        self._longest = longest_s * fps
        self._mp4: Mp4 | None = None
        self._last = -1

    def add(self, frame: NDArray[np.uint8], caption: Caption) -> None:
        """Shows a frame at the time of its step; none is shown after the longest playing time."""
        if caption.step < self._longest:
            self._show(frame, caption, caption.step)

    def finish(self, name: str, frame: NDArray[np.uint8], reward: float, record: episode_pb2.EpisodeRecord) -> Path:
        """Shows what the episode ended with, after a step that paid `reward`, and returns the file, of that name.

        Raises:
            OSError: If it cannot be written.
        """
        note = f"cut after {self._longest // self._fps} s of video" if record.length >= self._longest else ""
        caption = Caption(
            step=record.length,
            episode_return=record.episode_return,
            reward=reward,
            value=None,
            version=record.policy_version,
            task=record.task,
            note=note,
        )
        last = min(record.length, self._last + 1) if note else record.length
        self._show(frame, caption, last)
        self._show(frame, caption, last + max(1, round(HOLD_S * self._fps)))
        self._close()
        path = self._directory / name
        sync(self._aside)
        self._aside.replace(path)
        sync(self._directory)
        return path

    def discard(self) -> None:
        """Leaves nothing; after `finish` it does nothing. What is wrong with a file is no matter when it goes."""
        with suppress(OSError, FFmpegError):
            self._close()
        with suppress(OSError):
            self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        mp4, self._mp4 = self._mp4, None
        if mp4 is not None:
            mp4.close()

    def _show(self, frame: NDArray[np.uint8], caption: Caption, number: int) -> None:
        picture = draw(frame, caption)
        if self._mp4 is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._mp4 = Mp4(self._aside, picture.shape, self._fps)
        self._mp4.add(picture, number)
        self._last = number


def caption_of(episodes: RunningEpisodes, slot: int, value: float, version: int) -> Caption:
    """The bar's text for a slot, with the value that the policy of a version gives."""
    step, episode_return = episodes.so_far(slot)
    return Caption(
        step=step,
        episode_return=episode_return,
        reward=episodes.last_reward(slot) if step else 0.0,
        value=value,
        version=version,
    )


def video_name(version: int, stream: str, episode: int) -> str:
    """The name of an episode's file, which no other episode has; nothing in it leads elsewhere."""
    return f"version-{version}-{re.sub(r'[^A-Za-z0-9-]', '_', stream)}-{episode}.mp4"


def forget_oldest(directory: Path) -> None:
    """Removes the oldest videos beyond `VIDEOS_KEPT`, and what actors that died have left behind; no other files."""
    found = sorted(directory.glob("version-*.mp4"), key=lambda path: (_modified_s(path), path.name))
    left = [path for path in directory.glob(f"{RECORDING_PREFIX}*") if _modified_s(path) < time.time() - LEFT_BEHIND_S]
    for path in (*found[:-VIDEOS_KEPT], *left):
        path.unlink(missing_ok=True)


def _modified_s(path: Path) -> float:
    """When a file was written last; 0 if another actor has just renamed or removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
