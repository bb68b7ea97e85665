"""Films an episode now and then, where parameters has named this actor.

    loop ── shots ──▶ tape ── draw, encode ──▶ file
                       │                         │ written or lost
                       └─ the episode's record ──┴──▶ uploader ──▶ replay

One slot's episode is filmed from its reset to its end, whenever the version that the actor acts with has passed another
multiple of `record_video_interval`. The loop fills the tape and waits for nothing: a frame for which the tape has no
room is left out, and the one before it stands longer. The camera's thread empties the tape. The record of a filmed
episode goes to replay once its file is written, and names it; if the file is lost, the record goes without it.
"""

import logging
import queue
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minefleet.v1 import episode_pb2
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.episode_video import Reel, caption_of, forget_oldest, video_name
from minefleet_actor.video.frame_source import Lens
from minefleet_actor.video.picture import Caption

logger = logging.getLogger(__name__)

TAPE_BYTES = 64 * 2**20
MAX_QUEUED_SHOTS = 256
"""Shots on the tape, and their bytes, beyond which frames are left out."""

Array = NDArray[Any]
Report = Callable[[int, episode_pb2.EpisodeRecord], None]
"""Sends the record of a slot's episode to replay. Any thread's."""


class Shot(NamedTuple):
    """One frame."""

    frame: Array
    caption: Caption


class Last(NamedTuple):
    """The frame that a whole episode ends with."""

    frame: Array
    reward: float
    record: episode_pb2.EpisodeRecord


class Cut(NamedTuple):
    """The film of the episode is thrown away."""


class Camera:
    """The loop's side, and the thread that writes.

    Args:
        lens: What to see.
        episodes: The counts of what slots have done.
        film: Makes the pool render a slot's frames from its next command on, or no longer.
        is_named: Whether parameters has named this actor.
        report: Takes the records of filmed episodes.
        directory: Of the files.
        fps: Frames per second of the videos; one frame is one step.
        interval: `record_video_interval`, versions; 0 films none.
        metrics: Where to count.
    """

    def __init__(
        self,
        *,
        lens: Lens,
        episodes: RunningEpisodes,
        film: Callable[[int, bool], None],
        is_named: Callable[[], bool],
        report: Report,
        directory: Path,
        fps: int,
        interval: int,
        metrics: ActorMetrics,
    ) -> None:
        self._lens = lens
        self._episodes = episodes
        self._film = film
        self._is_named = is_named
        self._report = report
        self._directory = directory
        self._fps = fps
        self.interval = interval
        self._metrics = metrics
        self._slot = -1
        """The slot that is filmed; -1 while none is."""
        self._filmed = 0
        """Multiples of the interval that the version had passed when the last whole episode began."""
        self._passed = 0
        """As many for the episode that is filmed."""
        self._tape: queue.Queue[Shot | Last | Cut | None] = queue.Queue()
        self._waiting: tuple[int, episode_pb2.EpisodeRecord] | None = None
        """The record of an episode whose file is being written, and its slot."""
        self._lock = threading.Lock()
        self._stopped = False

    def is_filming(self, slot: int) -> bool:
        """Whether the slot's episode is filmed."""
        return slot == self._slot

    def begin(self, slot: int, version: int) -> None:
        """A slot is about to be reset, by an actor that acts with `version`: its episode is filmed if one is due."""
        passed = version // self.interval if self.interval else self._filmed
        is_busy = self._slot >= 0 or self._waiting is not None
        if is_busy or self._stopped or passed == self._filmed or not self._is_named():
            return
        self._slot, self._passed = slot, passed
        self._film(slot, True)

    def film(self, slots: NDArray[np.intp], value: NDArray[np.float32], version: NDArray[np.uint32]) -> None:
        """The slots see something and have decided what to do; their next commands are not given yet."""
        for place in np.flatnonzero(slots == self._slot):
            frame = self._lens(self._slot)
            if self._tape.qsize() < min(MAX_QUEUED_SHOTS, max(TAPE_BYTES // frame.nbytes, 4)):
                caption = caption_of(self._episodes, self._slot, float(value[place]), int(version[place]))
                self._tape.put(Shot(frame.copy(), caption))
            else:
                self._metrics.frames_dropped.inc()

    def end(self, slot: int, record: episode_pb2.EpisodeRecord) -> bool:
        """A slot's episode has ended, or failed, and shows the last that there is to see.

        Returns:
            Whether the camera reports the record: it does once the episode's video is written.
        """
        if slot != self._slot:
            return False
        if record.failure:
            self._turn_off(Cut())
            return False
        self._filmed, self._waiting = self._passed, (slot, record)
        self._turn_off(Last(self._lens(slot).copy(), self._episodes.last_reward(slot), record))
        return True

    def stop(self) -> None:
        """Begins no video any more; one that is not whole is given up."""
        self._stopped = True
        if self._slot >= 0:
            self._turn_off(Cut())

    def close(self) -> None:
        """Ends `run` once the tape is empty."""
        self._tape.put(None)

    def give_up(self) -> None:
        """Reports what `run` has not come to report, without its video."""
        self._report_waiting(None)

    def run(self) -> None:
        """Writes until closed."""
        reel = Reel(self._directory, self._fps)
        is_lost = False
        while (item := self._tape.get()) is not None:
            path = None
            try:
                path = None if is_lost else self._develop(reel, item)
            except Exception as error:  # noqa: BLE001  # Disks fill up, and encoders fail in ways of their own.
                is_lost = True
                logger.warning("a video is lost, the actor goes on: %s", error)
            if isinstance(item, Last | Cut):
                reel.discard()
                is_lost = False
            if isinstance(item, Last):
                # Last of all: the loop may end another episode from now on.
                self._report_waiting(path)

    def _turn_off(self, last: Last | Cut) -> None:
        slot, self._slot = self._slot, -1
        self._tape.put(last)
        self._film(slot, False)

    def _develop(self, reel: Reel, item: Shot | Last | Cut) -> Path | None:
        """Writes an item; returns the file that it ends."""
        if isinstance(item, Shot):
            reel.add(item.frame, item.caption)
        if not isinstance(item, Last):
            return None
        record = item.record
        name = video_name(record.policy_version, record.stream, record.episode)
        path = reel.finish(name, item.frame, item.reward, record)
        forget_oldest(self._directory)
        logger.info("filmed an episode of version %d: %s", record.policy_version, path)
        return path

    def _report_waiting(self, path: Path | None) -> None:
        """Reports the record that waits, if it still does."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        slot, record = waiting
        if path is not None:
            record.video.host, record.video.path = socket.gethostname(), str(path.absolute())
        self._metrics.videos.labels("lost" if path is None else "written").inc()
        self._report(slot, record)
