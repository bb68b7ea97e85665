"""Keeps what led to the deaths of environments, each in a directory RUN_DIR/deaths/ACTOR-TIME that appears whole.

death.json        who, when and why; the last lines of the log
actions.npz       the actions since the environment was made; of each episode the begin, first digest and task
step-000041.png   the pictures that were acted on last, by steps since the environment was made
"""

import json
import logging
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minefleet.core.atomic_files import appearing, disk_bytes
from minefleet.core.errors import ConfigError
from minefleet.core.file_tail import last_lines
from minefleet.core.schema import Leaf
from minefleet.core.surrogate_replacement import readable
from minefleet.core.tree import Tree, flatten
from minefleet.monitoring.env_death_groups import (
    ACTIONS_FILE,
    DEATH_FILE,
    DEATHS_DIRECTORY,
    Death,
    group_of,
    read_deaths,
)
from minefleet.runs.run_yaml import Run
from minefleet_actor.pool import Failure, Pool
from minefleet_actor.video.picture import Frame, pixel_path, to_rgb

logger = logging.getLogger(__name__)

MAX_ACTION_BYTES, MAX_EPISODES = 2**20, 10_000
"""Of each slot's environment: 349,525 steps of VPT's actions, which take three bytes each."""
MAX_FRAMES, MAX_FRAME_BYTES = 8, 2**26
"""Pictures of each slot, and the memory of those of all slots."""
MAX_BYTES = 2**28
"""Of the deaths that an actor keeps."""
MAX_WAITING = 8
"""Deaths that may wait for the disk; further ones are counted by the last that waits."""
LOG, LOG_BYTES = Path("/proc/self/fd/2"), 4096
RESET_FAILED = -1
"""In the place of a first observation's digest."""


class DeathRecorder:
    """The actions of every slot since its environment was made, its last pictures, and the deaths on the disk."""

    def __init__(self, run: Run, pool: Pool, actor: str) -> None:
        worker, slots = run.config.rollout_config.worker_config, pool.num_slots
        self._pool, self._actor, self._most = pool, actor, worker.deaths_kept
        self._directory = run.directory / DEATHS_DIRECTORY
        self._cannot_repeat = "it ran on a host" * worker.hosted or "it is one of a batch" * run.config.env.batched
        row = np.dtype([(f"/{path}", _dtype(leaf), leaf.shape) for path, leaf in flatten(run.schema.action).items()])
        self._capacity = MAX_ACTION_BYTES // max(row.itemsize, 1)
        self._actions = np.zeros((slots, self._capacity + 1), row)
        """[S, capacity + 1]; the last row takes those that there is no room for."""
        self._steps, self._seeds = np.zeros(slots, np.int64), np.full(slots, -1)
        """[S]: the steps since the environment was made, and the seed that it began with; -1 where that is lost."""
        self._episodes: list[list[tuple[int, int, str]]] = [[] for _ in range(slots)]
        """Per slot, of each episode since then: the steps before it, the first observation's digest, the task."""
        self._path, self._renders = pixel_path(run.schema.obs), run.frame_shape is not None
        shape = flatten(run.schema.obs)[self._path].shape if self._path is not None else (0,)
        count = min(MAX_FRAMES, max(1, MAX_FRAME_BYTES // max(1, slots * int(np.prod(shape)))))
        self._frames = np.zeros((slots, count, *shape), np.uint8)
        self.pictures: dict[int, Frame] = {}
        """Slot -> what it showed last before its last failure."""
        self._last: Failure | None = None
        self._waiting, self._is_failing = threading.BoundedSemaphore(MAX_WAITING), False
        self._writer = ThreadPoolExecutor(1, "deaths")
        for torn in self._directory.glob(f".{actor}-*"):
            shutil.rmtree(torn, ignore_errors=True)
        mine = [death for death in read_deaths(run.directory) if death["actor"] == actor]
        self._kept = {Path(one["place"]): (one["group"], disk_bytes(Path(one["place"]))) for one in mine}
        """Group and bytes of each death on the disk, the oldest first."""
        self._seen = {one["group"]: (one["count"], one["first_s"]) for one in mine}
        """Of each group, how many deaths this actor has seen in this run, and when the first was."""

    def began(self, slot: int, *, failed: bool = False) -> None:
        """Records that an episode has begun, or that its reset has failed."""
        seed, task = self._pool.begun(slot)
        if seed >= 0 or self._steps[slot] > self._capacity or len(self._episodes[slot]) >= MAX_EPISODES:
            self._episodes[slot], self._seeds[slot], self._steps[slot] = [], seed, 0
        digest = RESET_FAILED if failed else obs_digest(self._pool.obs, slot)
        self._episodes[slot].append((int(self._steps[slot]), digest, task))

    def act(self, slots: NDArray[np.intp], action: Tree) -> None:
        """Records a step of each slot: the action, a tree of [len(slots), ...], and the picture acted on."""
        steps = self._steps[slots]
        rows = np.minimum(steps, self._capacity)
        for path, leaf in flatten(action).items():
            self._actions[f"/{path}"][slots, rows] = leaf
        if self._path is not None:
            shown, at = flatten(self._pool.obs)[self._path], steps % self._frames.shape[1]
            for slot, index in zip(slots.tolist(), at.tolist(), strict=True):  # All at once would be copied twice.
                self._frames[slot, index] = shown[slot]
        self._steps[slots] += 1

    def keep(self, slot: int, failure: Failure, task: str, *, in_reset: bool) -> None:
        """Keeps a death. Of slots that share a failure, the first stands for all."""
        frames = self._last_frames(slot)
        self.pictures.pop(slot, None)
        self.pictures.update((slot, frame) for frame in [*frames.values()][-1:])
        if failure is self._last:
            return
        self._last = failure
        if in_reset:
            self.began(slot, failed=True)
        group, now_s = group_of(failure.kind, failure.text), time.time()
        count, first_s = self._seen.get(group, (0, now_s))
        self._seen[group] = count + 1, first_s
        if not self._waiting.acquire(blocking=False):
            return
        steps, episodes = int(self._steps[slot]), self._episodes[slot]
        is_whole = self._seeds[slot] >= 0 and steps <= self._capacity
        death: Death = {
            "actor": self._actor,
            "slot": slot,
            "time_s": now_s,
            "first_s": first_s,
            "count": count + 1,
            "group": group,
            "text": readable(failure.text),
            "task": readable(task),
            "seed": int(self._seeds[slot]),
            "episode": len(episodes),
            "steps": steps - episodes[-1][0],
            "rss_bytes": list(failure.rss_bytes),
            "cannot_repeat": self._cannot_repeat or "it took more steps than are kept" * (not is_whole),
        }
        begin, digest, tasks = map(np.array, zip(*episodes, strict=True))
        actions = self._actions[slot, : min(steps, self._capacity)].copy()
        arrays = {"actions": actions, "begin": begin, "digest": digest, "task": tasks}
        self._writer.submit(self._write, death, arrays, frames)

    def close(self) -> None:
        """Waits until all is written."""
        self._writer.shutdown()

    def _last_frames(self, slot: int) -> dict[int, Frame]:
        """The pictures that a slot has shown last, by the steps since its environment was made."""
        steps, count = int(self._steps[slot]), self._frames.shape[1]
        if self._renders:
            frame = self._pool.frames[slot] * self._pool.is_filmed(slot)
            return {steps: frame} if frame.any() else {}  # It may have shown nothing yet.
        shown = range(max(0, steps - count), steps) if self._path is not None else ()
        return {step: np.ascontiguousarray(to_rgb(self._frames[slot, step % count].copy())) for step in shown}

    def _write(self, death: Death, arrays: dict[str, Any], frames: dict[int, Frame]) -> None:
        """Writes a death, and forgets others. A disk that takes none is complained of once: training matters more."""
        place = self._directory / f"{self._actor}-{datetime.fromtimestamp(death['time_s']):%m%d-%H%M%S.%f}"
        try:
            death["count"], _ = self._seen[death["group"]]  # With those since that found no room.
            death["log"] = last_lines(LOG, LOG_BYTES).splitlines() if LOG.is_file() else []
            with appearing(place) as aside:
                np.savez_compressed(aside / ACTIONS_FILE, **arrays)
                for step, frame in frames.items():
                    Image.fromarray(frame).save(aside / f"step-{step:06d}.png", compress_level=1)
                (aside / DEATH_FILE).write_text(json.dumps(death))
            self._kept[place], self._is_failing = (death["group"], disk_bytes(place)), False
            while len(self._kept) > self._most or sum(size for _, size in self._kept.values()) > MAX_BYTES:
                self._forget()
        except (ConfigError, OSError) as error:
            if not self._is_failing:
                logger.warning("deaths of environments are not kept: %s", error)
            self._is_failing = True
        finally:
            self._waiting.release()

    def _forget(self) -> None:
        """Removes the oldest death of the largest group."""
        ((largest, _),) = Counter(group for group, _ in self._kept.values()).most_common(1)
        oldest = next(place for place, (group, _) in self._kept.items() if group == largest)
        del self._kept[oldest]
        with suppress(OSError):  # Somebody may have removed it.
            shutil.rmtree(oldest.rename(oldest.with_name(f".{oldest.name}")))


def obs_digest(obs: Tree, slot: int) -> int:
    """A number for a slot's observation, the same for the same one."""
    return crc32(b"".join(leaf[slot].tobytes() for leaf in flatten(obs).values()))


def _dtype(leaf: Leaf) -> Any:
    return np.min_scalar_type(max(leaf.categories)) if leaf.categories else leaf.dtype
