"""Describes every slot of an actor for people who watch.

Threads of the server read what the loop writes, without a lock: a number may be one step older than its neighbour, a
picture half of one frame and half of the next, and training pays nothing.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import ConfigError, NotFoundError
from minefleet.core.surrogate_replacement import readable
from minefleet.core.tree import Tree, flatten
from minefleet.rpc.durations import duration
from minefleet.runs.run_yaml import Run
from minefleet.v1 import slots_service_pb2
from minefleet_actor.env_death_recorder import DeathRecorder
from minefleet_actor.loop import Actor, Phase
from minefleet_actor.pool import Pool
from minefleet_actor.replay_io.stream_router import StreamRouter
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.freshness_cuts import FreshnessCuts
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.frame_source import can_film, make_lens
from minefleet_actor.video.picture import Frame, to_rgb
from minefleet_actor.video.video_recorder import Camera

Slot = slots_service_pb2.Slot
STATES = {
    Phase.READY: slots_service_pb2.SLOT_STATE_READY,
    Phase.BLOCKED: slots_service_pb2.SLOT_STATE_BLOCKED,
    Phase.AWAITING_BOOTSTRAP: slots_service_pb2.SLOT_STATE_BOOTSTRAPPING,
}
RENDER_S = 10.0
"""A slot goes on rendering so long after somebody has looked at it."""
ACTION_NUMBERS = 8
"""Of each array of an action, so many are shown."""


class SlotView:
    """The slots of an actor that plays."""

    def __init__(
        self,
        run: Run,
        actor: Actor,
        pool: Pool,
        router: StreamRouter,
        recorder: Recorder,
        episodes: RunningEpisodes,
        cuts: FreshnessCuts,
        camera: Camera | None,
        deaths: DeathRecorder | None,
    ) -> None:
        self._actor = actor
        self._pool = pool
        self._router = router
        self._recorder = recorder
        self._episodes = episodes
        self._cuts = cuts
        self._camera = camera
        self._pictures = {} if deaths is None else deaths.pictures
        """Of slots that have failed, the last one before that."""
        self._lens: Callable[[int], NDArray[Any]] | None = make_lens(run, pool) if can_film(run) else None
        self._renders = run.frame_shape is not None
        self._watched_until: dict[int, float] = {}
        """Slot -> when it need not render any more, if nobody asks again."""

    def slots(self) -> list[Slot]:
        """Every slot, by number."""
        resetting = self._actor.resetting
        return [self._slot(slot, is_resetting=bool(resetting[slot])) for slot in range(self._pool.num_slots)]

    def frame(self, slot: int, *, before_failure: bool = False) -> Frame:
        """The picture that a slot shows, or the last one before its last failure.

        [H, W, 3] uint8; without pixels where the slot has only begun to render.

        Raises:
            ConfigError: If the environment shows nothing.
            NotFoundError: If there is no such slot, or no picture from before a failure.
        """
        if not 0 <= slot < self._pool.num_slots:
            raise NotFoundError(f"there is no slot {slot}: this actor has {self._pool.num_slots}")
        if self._lens is None:
            raise ConfigError(
                "the environment shows no pixels; runs made with train_config.record_video_interval above 0 render"
            )
        if before_failure:
            if (last := self._pictures.get(slot)) is None:
                raise NotFoundError(f"slot {slot} has left no picture from before a failure")
            return last
        if self._renders:
            self._watched_until[slot] = time.monotonic() + RENDER_S
            self._pool.film(slot, True)
        picture = to_rgb(np.array(self._lens(slot)))
        return picture[:0, :0] if self._renders and not picture.any() else picture

    def rest(self) -> None:
        """Lets slots render no longer at which nobody looks any more."""
        now = time.monotonic()
        for slot in [slot for slot, until in list(self._watched_until.items()) if until < now]:
            del self._watched_until[slot]
            if self._camera is None or not self._camera.is_filming(slot):
                self._pool.film(slot, False)

    def _slot(self, slot: int, *, is_resetting: bool) -> Slot:
        steps, episode_return = self._episodes.so_far(slot)
        shown = Slot(
            state=self._state(slot, is_resetting=is_resetting),
            reason=self._actor.lack(slot),
            age=duration(max(0.0, self._cuts.command_age_s(slot))),
            task=readable(self._recorder.plays(slot)),
            episode_steps=steps,
            episode_return=episode_return,
            stream=self._router.stream(slot),
        )
        if self._cuts.step_s(slot):
            shown.step.CopyFrom(duration(self._cuts.step_s(slot)))
        last = self._recorder.last_decision(slot, in_flight=shown.state == slots_service_pb2.SLOT_STATE_STEPPING)
        if last is not None:
            action, shown.value, shown.policy_version = last
            shown.action = action_text(action)
        self._add_failures(shown, slot)
        return shown

    def _state(self, slot: int, *, is_resetting: bool) -> slots_service_pb2.SlotState.ValueType:
        phase = int(self._actor.phase[slot])
        if phase != Phase.WORKING:
            return STATES[phase]
        if not is_resetting:
            return slots_service_pb2.SLOT_STATE_STEPPING
        rests = self._pool.rests_until_s[slot] > time.monotonic()
        return slots_service_pb2.SLOT_STATE_RESTING if rests else slots_service_pb2.SLOT_STATE_RESETTING

    def _add_failures(self, shown: Slot, slot: int) -> None:
        failures = self._actor.failures.get(slot)
        if failures is not None:
            shown.failures = failures.count
            age = duration(time.monotonic() - failures.last_s)
            last = slots_service_pb2.SlotFailure(kind=failures.last.kind, text=readable(failures.last.text), age=age)
            last.has_frame = slot in self._pictures
            shown.last_failure.CopyFrom(last)


def action_text(action: Tree) -> str:
    """An action, without axes of time and batch, as people read it: `2`, or `turn 2  dig 0`."""
    leaves = {path: _leaf_text(leaf) for path, leaf in flatten(action).items()}
    return (
        next(iter(leaves.values()))
        if len(leaves) == 1
        else "  ".join(f"{path} {leaf}" for path, leaf in leaves.items())
    )


def _leaf_text(leaf: Any) -> str:
    numbers = np.round(np.ravel(leaf)[:ACTION_NUMBERS].astype(np.float64), 3).tolist()
    shown = [int(number) if number.is_integer() else number for number in numbers]
    return (
        str(shown[0])
        if np.size(leaf) == 1
        else json.dumps(shown)[:-1] + (", …]" if np.size(leaf) > len(shown) else "]")
    )
