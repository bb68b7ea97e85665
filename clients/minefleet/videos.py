"""What actors, replay and the learner agree on about videos: size, format, and the names of their files."""

import os
import re
from pathlib import Path

from minefleet.files import sync, write_durably
from minefleet.v1 import episode_pb2

MAX_VIDEO_BYTES = 8 * 2**20
"""A video that travels is no larger."""
VIDEO_FORMAT = "mp4"
VIDEOS_KEPT = 100
"""Videos that a directory keeps, the newest."""


def video_name(version: int, stream: str, episode: int) -> str:
    """The name of an episode's file, the same wherever it is written; nothing in it leads elsewhere."""
    return f"version-{version}-{re.sub(r'[^A-Za-z0-9-]', '_', stream)}-{episode}.{VIDEO_FORMAT}"


def keep_video(directory: Path, video: episode_pb2.Video) -> Path:
    """Writes a video whole, unless its name is there already: an actor on this machine has written it.

    Raises:
        OSError: If it cannot be written; then nothing of it is left.
    """
    path = directory / video_name(video.policy_version, video.stream, video.episode)
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{path.name}.{os.getpid()}"
    try:
        write_durably(aside, video.data)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync(directory)
    forget_oldest(directory)
    return path


def forget_oldest(directory: Path) -> None:
    """Removes the oldest videos beyond `VIDEOS_KEPT`, and no other files."""
    found = sorted(directory.glob(f"version-*.{VIDEO_FORMAT}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in found[:-VIDEOS_KEPT]:
        path.unlink(missing_ok=True)
