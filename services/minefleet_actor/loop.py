"""The actor's loop.

            ┌──────────────── reset, step ────────────────┐
            ▼                                             │
        ┌──────┐  ready   ┌──────────┐  batch   ┌───────────┐
        │ pool │ ───────▶ │ recorder │ ───────▶ │ inference │ ◀── staged weights ── follower ◀── parameters
        └──────┘          └──────────┘          └───────────┘
                               │ fragments, episodes    ▲ grants
                               ▼                        │
                            shipper ──▶ replay ◀──── grants     (lanes: one pair per shard)

One turn: wait for environments, write down what they answered, take newer weights, decide for every slot that wants it,
step. The only wait is in `pool.wait`: environments that are ready, new grants, room in the shipper's queue, new weights
and a failed thread all wake it.

A slot is in one phase:

    WORKING  its environment resets or steps; pool.wait ends it
    READY    an observation waits for a decision           -> WORKING, or HELD when its next fragment may not start yet
    HELD     no grant or no room for the next fragment     -> READY when there is; may go to another shard meanwhile
    ENDING   its episode was cut; the value of the last observation is wanted before the reset -> WORKING
"""

import enum
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minefleet.config import RolloutConfig
from minefleet.tree import Tree, tree_map
from minefleet.v1 import episode_pb2
from minefleet_actor.episodes import Episodes
from minefleet_actor.inference import Decision, Inference
from minefleet_actor.lanes import PATIENCE_S, Lanes
from minefleet_actor.metrics import ActorMetrics
from minefleet_actor.pool import Failure, Kind, Pool, Ready
from minefleet_actor.recorder import Recorder
from minefleet_actor.video.camera import Camera
from minefleet_actor.weights import WeightsFollower

Slots = NDArray[np.intp]
LONGEST_WAIT_S = 1.0


class Phase(enum.IntEnum):
    """Where a slot stands; the legal moves are in the module's docstring."""

    WORKING = 0
    READY = 1
    HELD = 2
    ENDING = 3


class Actor:
    """One actor incarnation: its slots and what they are doing."""

    def __init__(
        self,
        *,
        pool: Pool,
        inference: Inference,
        recorder: Recorder,
        episodes: Episodes,
        lanes: Lanes,
        follower: WeightsFollower,
        metrics: ActorMetrics,
        rollout: RolloutConfig,
        camera: Camera | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._inference = inference
        self._recorder = recorder
        self._episodes = episodes
        self._lanes = lanes
        self._follower = follower
        self._metrics = metrics
        self._worker = rollout.worker_config
        self._camera = camera
        self._clock = clock
        slots = pool.num_slots
        self._phase = np.full(slots, Phase.WORKING, np.int8)
        self._sequence = np.zeros(slots, np.int64)
        self._reset_at = np.full(slots, np.inf)
        self._held_at = np.full(slots, np.inf)
        self._acted_at = np.full(slots, np.nan)

    def start(self) -> None:
        """Resets every environment and wishes for every slot's first chunk."""
        everyone = np.arange(self._pool.num_slots)
        for slot in everyone:
            self._inference.reset(int(slot))
            self._lanes.wish(int(slot), 0)
        self._pool.reset(everyone)

    def turn(self, wait_s: float = LONGEST_WAIT_S) -> None:
        """Does what can be done, after waiting at most `wait_s` for something to do."""
        self._gather(wait_s)
        self._take_weights()
        self._let_go()
        self._move_on()
        self._decide()
        self._cut_slow_resets()

    def is_held(self) -> bool:
        """Whether every slot waits for a grant or room: nothing will happen before replay answers."""
        return bool(np.all(self._phase == Phase.HELD))

    def figures(self) -> dict[str, float]:
        """What `minefleet status` shows."""
        resetting = (self._phase == Phase.WORKING) & np.isnan(self._acted_at)
        return {
            "policy_version": self._inference.version,
            **self._metrics.totals(),
            "slots": self._pool.num_slots,
            **self._metrics.slots(
                held=self.held(),
                resetting=int(np.count_nonzero(resetting)),
                resting=self._pool.resting,
                queued=self._lanes.queued,
            ),
        }

    def held(self) -> Counter[str]:
        """How many slots are held, by what they wait for."""
        held = np.flatnonzero(self._phase == Phase.HELD).tolist()
        return Counter(self._lanes.lack(slot) for slot in held)

    def drain(self) -> None:
        """Closes every open fragment with the steps that are complete, and its stream with it."""
        if self._camera is not None:
            self._camera.stop()
        unseen = np.flatnonzero(np.isin(self._phase, (Phase.READY, Phase.ENDING)))
        if len(unseen):
            self._look(unseen)
        for slot in range(self._pool.num_slots):
            working = self._phase[slot] == Phase.WORKING
            after = self._recorder.acted_on(slot) if working else self._obs(slot)
            self._ship(slot, after, closes_stream=True)

    def _gather(self, wait_s: float) -> None:
        """Waits for work; once there is some, at most `batch_timeout_s` longer for a batch worth computing."""
        self._absorb(self._pool.wait(0.0 if self._wanting() else wait_s))
        until = self._clock() + self._worker.batch_timeout_s
        least = min(self._worker.least_batch, int(np.count_nonzero(self._phase != Phase.HELD)))
        while 0 < self._wanting() < least and (left := until - self._clock()) > 0:
            self._absorb(self._pool.wait(left))

    def _wanting(self) -> int:
        """Slots that want a decision or a value."""
        return int(np.count_nonzero((self._phase == Phase.READY) | (self._phase == Phase.ENDING)))

    def _absorb(self, ready: Ready) -> None:
        """Writes down what environments answered."""
        stepped = ready.kind == Kind.STEP
        if stepped.any():
            self._absorb_steps(ready, stepped)
        for slot in ready.slots[ready.kind == Kind.RESET]:
            self._reset_at[slot] = np.inf
            self._phase[slot] = Phase.READY
        for slot in ready.slots[ready.kind == Kind.FAILED]:
            self._absorb_failure(int(slot), ready.failures[int(slot)], ready.endings[int(slot)].task)

    def _absorb_steps(self, ready: Ready, stepped: NDArray[np.bool_]) -> None:
        slots, terminated, truncated = ready.slots[stepped], ready.terminated[stepped], ready.truncated[stepped]
        self._recorder.result(slots, ready.reward[stepped], terminated, truncated)
        self._episodes.add(slots, ready.reward[stepped])
        self._metrics.stepped(self._lanes.numbers[slots], self._clock() - self._acted_at[slots])
        self._acted_at[slots] = np.nan
        if self._camera is not None:
            self._camera.step(slots, ready.reward[stepped])
        self._phase[slots] = Phase.READY
        for slot, dead in zip(slots[terminated | truncated], terminated[terminated | truncated], strict=True):
            self._end_episode(int(slot), bool(dead), ready)

    def _end_episode(self, slot: int, terminated: bool, ready: Ready) -> None:
        ending = ready.endings.get(slot)
        record = self._episodes.end(
            slot,
            self._lanes.stream(slot),
            version=self._inference.version,
            terminated=terminated,
            truncated=not terminated,
            metrics=ending.metrics if ending else None,
            task=ending.task if ending else "",
        )
        self._report(slot, record)
        if terminated:
            self._reset(slot)
        else:
            self._recorder.cut(slot, self._obs(slot))
            self._phase[slot] = Phase.ENDING

    def _absorb_failure(self, slot: int, failure: Failure, task: str) -> None:
        """Keeps what came before the failure, as an episode that was cut."""
        self._metrics.failed(self._lanes.numbers[slot], failure.kind)
        self._acted_at[slot] = np.nan
        record = self._episodes.end(
            slot, self._lanes.stream(slot), version=self._inference.version, task=task, failure=failure.kind
        )
        self._report(slot, record)
        in_flight = self._phase[slot] == Phase.WORKING
        self._recorder.fail(slot, self._recorder.acted_on(slot) if in_flight else self._obs(slot))
        if in_flight:
            self._reset(slot)
        else:
            self._phase[slot] = Phase.ENDING

    def _report(self, slot: int, record: episode_pb2.EpisodeRecord) -> None:
        self._lanes.report(slot, record)
        if self._camera is not None:
            self._camera.end(slot, record)

    def _reset(self, slot: int) -> None:
        """Starts the next episode; a full fragment leaves first."""
        if self._recorder.is_full(slot):
            self._ship(slot)
        self._inference.reset(slot)
        self._phase[slot] = Phase.WORKING
        self._reset_at[slot] = self._clock()
        if self._camera is not None:
            self._camera.begin(slot)
        self._pool.reset(np.array([slot]))

    def _take_weights(self) -> None:
        staged = self._follower.take()
        if staged is not None:
            self._inference.swap(staged.weights, staged.info.version)
            self._follower.runs(staged.info.version)
            self._metrics.version.set(staged.info.version)
            self._lanes.news()

    def _let_go(self) -> None:
        """Lets held slots go on whose next fragment may start now."""
        for slot in np.flatnonzero(self._phase == Phase.HELD):
            if self._may_start(int(slot)):
                self._phase[slot] = Phase.READY

    def _hold(self, slot: int) -> None:
        self._phase[slot] = Phase.HELD
        self._held_at[slot] = self._clock()

    def _move_on(self) -> None:
        """Lets slots that are held for long go on as new streams, on shards that have room.

        The fragment of a held slot has no step yet, so none changes its name.
        """
        if len(self._lanes) == 1:
            return
        impatient = np.flatnonzero((self._phase == Phase.HELD) & (self._clock() - self._held_at > PATIENCE_S))
        if not len(impatient) or not self._lanes.look_around():
            return
        for slot in impatient:
            if self._lanes.move(int(slot), int(self._sequence[slot])):
                self._sequence[slot] = 0
                self._lanes.wish(int(slot), 0)
                self._hold(int(slot))

    def _decide(self) -> None:
        """Runs the policy for every slot that wants it and carries out what it decided."""
        looking: list[int] = []
        acting: list[int] = []
        for slot in np.flatnonzero((self._phase == Phase.READY) | (self._phase == Phase.ENDING)):
            self._sort(int(slot), looking, acting)
        if looking:
            self._look(np.array(looking, np.intp))
        for batch in self._batches(acting):
            self._act(batch)

    def _sort(self, slot: int, looking: list[int], acting: list[int]) -> None:
        """Says whether a slot may act now, or only wants the value of what it sees, or is held."""
        if self._phase[slot] == Phase.ENDING:
            looking.append(slot)
        elif not self._at_border(slot) or self._may_start(slot):
            acting.append(slot)
        elif self._recorder.is_full(slot):
            looking.append(slot)
        else:
            self._hold(slot)

    def _look(self, slots: Slots) -> None:
        """Computes the value of what the slots see, for the steps that led there; then ships, resets or holds them."""
        decision = self._infer(slots, self._rows(slots), keeps=np.zeros(len(slots), np.bool_))
        self._recorder.see(slots, decision.value)
        for slot in slots:
            if self._phase[slot] == Phase.ENDING:
                self._reset(int(slot))
            elif self._recorder.is_full(slot):
                self._ship(int(slot), self._obs(int(slot)))
                self._hold(int(slot))

    def _act(self, slots: Slots) -> None:
        """Decides for the slots and steps their environments."""
        obs = self._rows(slots)
        before = {int(slot): self._inference.state(int(slot)) for slot in slots if self._at_border(int(slot))}
        decision = self._infer(slots, obs, keeps=np.ones(len(slots), np.bool_))
        self._recorder.see(slots, decision.value)
        for slot, state in before.items():
            self._ship(slot, self._obs(slot))
            self._begin(slot, state)
        self._recorder.act(slots, obs, decision.action, decision.logp, decision.value, decision.first, decision.version)
        if self._camera is not None:
            self._camera.look(slots, decision.value, decision.version)
        self._phase[slots] = Phase.WORKING
        self._acted_at[slots] = self._clock()
        self._pool.step(slots, decision.action)

    def _begin(self, slot: int, recurrent_state: Tree) -> None:
        """Opens the slot's next fragment and wishes ahead for what follows it, so that no grant is waited for idly."""
        self._recorder.begin(slot, recurrent_state)
        self._lanes.wish(slot, int(self._sequence[slot]) + 1)

    def _infer(self, slots: Slots, obs: Tree, keeps: NDArray[np.bool_]) -> Decision:
        with self._metrics.inferring(len(slots)):
            return self._inference.decide(slots, obs, keeps)

    def _batches(self, slots: Sequence[int]) -> list[Slots]:
        """Cuts the slots into batches of at most the largest batch size."""
        size = self._worker.largest_batch
        return [np.array(slots[start : start + size], np.intp) for start in range(0, len(slots), size)]

    def _cut_slow_resets(self) -> None:
        """Ships the short fragments of slots whose reset takes long, before their steps go stale."""
        for slot in np.flatnonzero(self._clock() - self._reset_at > self._worker.reset_cut_s):
            self._reset_at[slot] = np.inf
            self._ship(int(slot))

    def _ship(self, slot: int, after: Tree | None = None, *, closes_stream: bool = False) -> None:
        """Closes the slot's fragment, queues it, and wishes for the chunk of the next one."""
        fragment = self._recorder.close(slot, after)
        if fragment is None:
            return
        self._lanes.send(slot, int(self._sequence[slot]), fragment, closes_stream=closes_stream)
        self._sequence[slot] += 1
        self._lanes.wish(slot, int(self._sequence[slot]))

    def _at_border(self, slot: int) -> bool:
        return bool(self._recorder.length[slot] == 0) or self._recorder.is_full(slot)

    def _may_start(self, slot: int) -> bool:
        """Whether the fragment after the open one may be started."""
        sequence = int(self._sequence[slot]) + int(self._recorder.is_full(slot))
        return self._lanes.may_start(slot, sequence)

    def _rows(self, slots: Slots) -> Tree:
        """Copies of what the slots see, [n, ...]."""
        return tree_map(lambda leaf: leaf[slots], self._pool.obs)

    def _obs(self, slot: int) -> Tree:
        return tree_map(lambda leaf: leaf[slot], self._pool.obs)
