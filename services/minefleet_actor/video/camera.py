"""Films the episodes that are wished for.

    loop ── shots ──▶ tape ── draw, encode ──▶ file ── copy that fits ──▶ shipper ──▶ replay
                                                                              │ stored
    parameters ── pending wishes ──▶ claim, renew ◀───────────────────────────┘ done

The loop fills the tape and waits for nothing: where the encoder cannot follow, every other frame is left out, then
three of four, and so on, and each frame that is there stands until the next one's time. This thread empties the tape;
it waits for shots, for wishes while there is nothing to film, and for the time to renew the claim.

    IDLE     nothing is wished for        a claim        -> WAITING
    WAITING  for an episode to begin      `begin`        -> FILMING
    FILMING  one slot's episode           it ends        -> LEAVING; it fails -> WAITING
    LEAVING  the video is on its way      stored or lost -> IDLE
"""

import enum
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from minefleet.errors import FleetError, NotFoundError
from minefleet.rpc import StoppedError
from minefleet.v1 import episode_pb2
from minefleet.videos import MAX_VIDEO_BYTES, VIDEO_FORMAT, forget_oldest, video_name
from minefleet.weights.manifest import Wish
from minefleet_actor.metrics import ActorMetrics
from minefleet_actor.video.lens import Lens
from minefleet_actor.video.mp4 import copy_within
from minefleet_actor.video.picture import Caption
from minefleet_actor.video.reel import Reel

logger = logging.getLogger(__name__)

KIND = "video"
RENEW_S = 15.0
"""A claim is renewed so often; parameters gives it to others after `CLAIM_TIMEOUT_S`, four times as long."""
TAPE_BYTES = 64 * 2**20
LONGEST_TAPE = 256
"""Shots on the tape, and their bytes, beyond which frames are left out."""
LONGEST_STRIDE = 64


class Claims(Protocol):
    """Where wishes are claimed: a `ParametersClient`."""

    def claim(self, wish: str, *, done: bool = False) -> bool:
        """Claims a wish or renews the claim, or reports it done; false if it is another's."""


Array = NDArray[Any]
Show = Callable[[episode_pb2.Video, Callable[[bool], None]], None]
"""Sends a video off; the second argument is told whether it was stored."""


class State(enum.Enum):
    """Where the camera stands; the legal moves are in the module's docstring."""

    IDLE = 0
    WAITING = 1
    FILMING = 2
    LEAVING = 3


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
    """What was filmed of the episode is thrown away."""


@dataclass(slots=True)
class Running:
    """The filmed episode, as the loop has seen it."""

    slot: int = -1
    steps: int = 0
    episode_return: float = 0.0
    reward: float = 0.0
    version: int = 0
    stride: int = 1
    """Every so many frames are put on the tape."""


class Camera:
    """The loop's side, and the thread that writes, ships and claims."""

    def __init__(
        self,
        *,
        lens: Lens,
        film: Callable[[int, bool], None],
        claims: Claims,
        show: Show,
        directory: Path,
        fps: int,
        metrics: ActorMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Stores its parts.

        Args:
            lens: What to see.
            film: Tells the pool to render a slot's frames from its next reset on, or no longer.
            claims: Wishes are claimed there.
            show: Sends videos off.
            directory: Of the files.
            fps: Frames per second of the videos; one frame is one step.
            metrics: Where to count.
            clock: Seconds, monotonic.
        """
        self._lens = lens
        self._film = film
        self._claims = claims
        self._show = show
        self._directory = directory
        self._fps = fps
        self._metrics = metrics
        self._clock = clock
        self._changed = threading.Condition()
        self._state = State.IDLE
        self._pending: tuple[str, ...] = ()
        self._refused: set[str] = set()
        """Wishes of which a video has failed here: others may do better."""
        self._wish = ""
        self._ask_at_s = 0.0
        """When to claim again, after an answer or none."""
        self._tape: deque[Shot | Last | Cut] = deque()
        self._running = Running()
        self._stored: bool | None = None
        """What the shipper says of the video; None while it says nothing."""
        self._spoiled = False
        """Something went wrong with the episode on the tape."""
        self._stopping = self._closed = False

    def hear(self, wishes: Collection[Wish]) -> None:
        """Takes what is pending now. Any thread's."""
        with self._changed:
            self._pending = tuple(wish.name for wish in wishes if wish.kind == KIND)
            self._changed.notify_all()

    def begin(self, slot: int) -> None:
        """A slot is about to be reset: its episode is filmed where one is wanted."""
        with self._changed:
            if self._state is not State.WAITING or self._stopping:
                return
            self._state, self._running = State.FILMING, Running(slot=slot)
        self._film(slot, True)

    def look(self, slots: NDArray[np.intp], value: NDArray[np.float32], version: int) -> None:
        """The slots see something and have decided what to do; their next commands are not given yet."""
        for place in np.flatnonzero(slots == self._running.slot):
            self._running.version = version
            self._shoot(float(value[place]))

    def step(self, slots: NDArray[np.intp], reward: NDArray[np.float32]) -> None:
        """The slots have taken a step."""
        running = self._running
        for place in np.flatnonzero(slots == running.slot):
            running.steps += 1
            running.reward = float(reward[place])
            running.episode_return += running.reward

    def end(self, slot: int, record: episode_pb2.EpisodeRecord) -> None:
        """A slot's episode has ended, or failed; what it shows is the last that there is to see."""
        running = self._running
        if slot != running.slot:
            return
        if record.failure:
            self._turn(State.WAITING, Cut())
        else:
            self._turn(State.LEAVING, Last(self._lens(slot).copy(), running.reward, record))

    def stop(self) -> None:
        """Begins no video any more; one that is not whole is given up, and its wish left to others."""
        self._stopping = True
        if self._running.slot >= 0:
            self._turn(State.WAITING, Cut())

    def settle(self, timeout_s: float) -> None:
        """Waits until what is whole is on its way to replay."""
        with self._changed:
            self._changed.wait_for(lambda: not self._tape, timeout_s)

    def close(self) -> None:
        """Ends `run`, which reports first what is stored by now."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Writes, ships and claims until closed."""
        reel = Reel(self._directory, self._fps)
        try:
            while self._attend():
                self._develop(reel)
        except StoppedError:
            return
        finally:
            reel.discard()

    def _shoot(self, value: float) -> None:
        """Puts what the slot shows on the tape, unless it is left out."""
        running = self._running
        frame = self._lens(running.slot)
        room = min(LONGEST_TAPE, max(TAPE_BYTES // frame.nbytes, 4))
        if running.steps % running.stride or len(self._tape) >= room:
            self._metrics.frames_left_out.inc()
            return
        running.stride = stride(running.stride, len(self._tape) / room)
        caption = Caption(
            step=running.steps,
            episode_return=running.episode_return,
            reward=running.reward,
            value=value,
            version=running.version,
        )
        with self._changed:
            self._tape.append(Shot(frame.copy(), caption))
            self._changed.notify_all()

    def _turn(self, state: State, last: Last | Cut) -> None:
        """Films the slot no longer."""
        slot = self._running.slot
        with self._changed:
            self._state, self._running = state, Running()
            self._tape.append(last)
            self._changed.notify_all()
        self._film(slot, False)

    def _attend(self) -> bool:
        """Waits for something to do, and sees to the wish; says whether there is more to do."""
        with self._changed:
            self._changed.wait_for(
                self._has_work, None if self._is_idle() else max(0.0, self._ask_at_s - self._clock())
            )
            stored, self._stored = self._stored, None
            wish = self._wish or next((name for name in reversed(self._pending) if name not in self._refused), "")
        if stored is not None:
            self._conclude(stored)
        elif wish and self._clock() >= self._ask_at_s:
            self._ask(wish)
        return not self._closed

    def _is_idle(self) -> bool:
        return not self._wish and not set(self._pending) - self._refused

    def _has_work(self) -> bool:
        due = not self._is_idle() and self._clock() >= self._ask_at_s
        return bool(self._tape) or self._closed or self._stored is not None or due

    def _ask(self, wish: str) -> bool:
        """Claims a wish or renews the claim; false if the wish is another's."""
        self._ask_at_s = self._clock() + RENEW_S
        claimed = self._claim(wish)
        with self._changed:
            if claimed and self._state is State.IDLE:
                self._wish, self._state = wish, State.WAITING
            elif claimed is False:
                self._pending = tuple(name for name in self._pending if name != wish)
                self._ask_at_s = 0.0
                if self._state in (State.IDLE, State.WAITING):
                    self._wish, self._state = "", State.IDLE
            self._changed.notify_all()
        return claimed is not False

    def _claim(self, wish: str, *, done: bool = False) -> bool | None:
        """What parameters says; None where it does not answer."""
        try:
            return self._claims.claim(wish, done=done)
        except NotFoundError:
            return False
        except StoppedError:
            raise
        except FleetError as error:
            logger.info("parameters does not answer the claim of %s: %s", wish, error)
            return None

    def _develop(self, reel: Reel) -> None:
        """Writes what comes next on the tape. Whatever ails a video, the actor goes on."""
        item = self._tape[0] if self._tape else None
        try:
            if isinstance(item, Last) and not self._spoiled:
                name = video_name(item.record.policy_version, item.record.stream, item.record.episode)
                self._ship(reel.finish(name, item.frame, item.reward, item.record), item.record)
            elif isinstance(item, Shot) and not self._spoiled:
                reel.add(item.frame, item.caption)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001  # Disks fill up, and encoders fail in ways of their own.
            self._spoiled = True
            logger.warning("the video for %s is lost: %s", self._wish, error)
        if isinstance(item, Last | Cut):
            reel.discard()
            if self._spoiled:
                self._was_stored(False)
            self._spoiled = False
        with self._changed:
            if item is not None:
                self._tape.popleft()
            self._changed.notify_all()

    def _ship(self, path: Path, record: episode_pb2.EpisodeRecord) -> None:
        """Sends a video that is written, unless another actor has taken over its wish."""
        forget_oldest(self._directory)
        if not self._ask(self._wish):
            path.unlink()
            raise FleetError("another actor has filmed meanwhile")
        video = episode_pb2.Video(
            wish=self._wish,
            format=VIDEO_FORMAT,
            data=fitting(path),
            stream=record.stream,
            episode=record.episode,
            policy_version=record.policy_version,
            episode_return=record.episode_return,
            task=record.task,
        )
        logger.info("filmed an episode of version %d: %s", record.policy_version, path)
        self._show(video, self._was_stored)

    def _was_stored(self, stored: bool) -> None:
        with self._changed:
            self._stored = stored
            self._changed.notify_all()

    def _conclude(self, stored: bool) -> None:
        """Reports the wish done, or leaves it to others."""
        self._metrics.videos.labels("stored" if stored else "lost").inc()
        if stored:
            self._claim(self._wish, done=True)
        with self._changed:
            self._refused = {self._wish} | self._refused & set(self._pending)
            if self._state is not State.FILMING:
                self._wish, self._state, self._ask_at_s = "", State.IDLE, 0.0
            self._changed.notify_all()


def stride(now: int, filled: float) -> int:
    """Of how many frames the next one is taken, by how full the tape is."""
    if filled > 0.5:
        return min(2 * now, LONGEST_STRIDE)
    return max(now // 2, 1) if filled < 0.125 else now


def fitting(path: Path) -> bytes:
    """The bytes of a video, or of a copy that is small enough to travel.

    Raises:
        ValueError: If it cannot be made so small.
    """
    if path.stat().st_size <= MAX_VIDEO_BYTES:
        return path.read_bytes()
    copy = path.with_name(f".{path.stem}.{os.getpid()}.mp4")
    try:
        if not copy_within(path, copy, MAX_VIDEO_BYTES):
            raise ValueError(f"{path} does not fit into {MAX_VIDEO_BYTES} bytes")
        return copy.read_bytes()
    finally:
        copy.unlink(missing_ok=True)
