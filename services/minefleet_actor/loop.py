"""The actor's loop.

            ┌──────────────── reset, step ─────────────────┐
            ▼                                              │
        ┌──────┐  ready   ┌──────┐   want    ┌─────────┐  decisions
        │ pool │ ───────▶ │ loop │ ────────▶ │ batcher │ ─┘   ▲
        └──────┘          └──────┘           └─────────┘ ◀── staged weights ── follower ◀── parameters
                              │ recorder: fragments, episodes
                              ▼
                           uploader ──▶ replay ──▶ permits    (one pair per shard)

One turn: wait for environments and decisions, write down what environments answered, pass newer weights on, ask for a
decision for every slot that wants one, carry out what was decided. The only wait is in `pool.wait`: environments that
are ready, decisions, new grants, room in the uploader's queue, new weights and a failed thread all wake it.

The batcher computes in a thread of its own: while it decides for some slots, the environments of others step and the
loop records them. What a decision says of a slot is carried out by the phase in which the slot is when it comes. Where
the actor has but one core there is no such thread: a turn computes one batch, when one is due. Where all environments
are in one process none is waited for, and a turn decides for all that it has found.

A slot is in one phase:

    WORKING             its environment resets or steps; pool.wait ends it
    READY               an observation waits for a decision           -> WORKING, or BLOCKED before its next fragment
    BLOCKED             no permit, room or time for the next fragment -> READY when there is
    AWAITING_BOOTSTRAP  its episode was cut; the value of the last observation is computed before the reset -> WORKING

Environments in a batch step together. While one of them is BLOCKED and others are given commands, it takes steps that
are not recorded, or those could not go on: replay may wait for what they are making.

A fragment ends when it is full, or before replay would find its first step too stale (`freshness_cuts`): between two
steps where the next one would take too long, and else while its environment works: the step in flight then begins the
next one.

Deterministic: there is no thread, every slot that works is waited for before any is decided for, and newer weights are
taken only where no slot is within a fragment.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minefleet.config import RolloutConfig
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree, tree_map
from minefleet.v1 import episode_pb2
from minefleet_actor.env_death_recorder import DeathRecorder
from minefleet_actor.inference.batcher import InferenceBatcher
from minefleet_actor.inference.policy_outputs import PolicyStep
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.inference.weight_sync import WeightsFollower
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.metrics.wait_time_breakdown import ENVIRONMENT, INFERENCE, Waiting
from minefleet_actor.pool import Failure, Kind, Pool, Ready
from minefleet_actor.replay_io.stream_router import StreamRouter
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.freshness_cuts import BALANCE, PACE, FreshnessCuts
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.video_recorder import Camera

MAX_WAIT_S = 1.0
RESET_CHECK_S = 0.25
"""At least, between two looks for resets that take long."""


class Phase:
    """The phase of a slot; the legal moves are in the module's docstring.

    Plain numbers, as those of `pool.Kind` below: NumPy compares an array with a member of an enumeration five times
    more slowly.
    """

    WORKING, READY, BLOCKED, AWAITING_BOOTSTRAP = range(4)


@dataclass(frozen=True, slots=True)
class SlotFailures:
    """The failures of a slot's environments."""

    count: int
    last: Failure
    last_s: float
    """When the last one was, on the loop's clock."""


LACKS = {PACE: "pace", BALANCE: "balance"}
"""Reasons for which a slot may not start a fragment that replay would take."""
STEP, RESET = int(Kind.STEP), int(Kind.RESET)


class Actor:
    """One actor incarnation: its slots and what they are doing."""

    def __init__(
        self,
        *,
        pool: Pool,
        inference: PolicyRunner,
        batcher: InferenceBatcher,
        recorder: Recorder,
        episodes: RunningEpisodes,
        router: StreamRouter,
        follower: WeightsFollower,
        metrics: ActorMetrics,
        rollout: RolloutConfig,
        cuts: FreshnessCuts,
        camera: Camera | None = None,
        settings: str = "",
        follow: Callable[[str], bool] = lambda _: True,
        deaths: DeathRecorder | None = None,
        first_task: Callable[[], str] = lambda: "",
        batch_size: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._inference = inference
        self._batcher = batcher
        self._recorder = recorder
        self._episodes = episodes
        self._router = router
        self._follower = follower
        self._metrics = metrics
        self._worker = rollout.worker_config
        self._camera = camera
        self._settings, self._follow = settings, follow
        """Those that it works by, and what makes it work by others, if that can be."""
        self.is_outdated = False
        """Whether a version has come whose settings take another actor: this one is to drain."""
        self._deaths = deaths
        self._first_task = first_task
        """Draws the task of an episode that begins before any grant has named one."""
        self._clock = clock
        slots = pool.num_slots
        self._versions = inference.versions
        self._cuts = cuts
        self.phase = np.full(slots, Phase.WORKING, np.int8)
        """[S] int8, each a `Phase`."""
        self.failures: dict[int, SlotFailures] = {}
        """Of each slot that has failed."""
        self._asked = np.zeros(slots, np.bool_)
        self._batch_of = np.arange(slots) // batch_size
        """[S]: the batch of environments that each slot belongs to."""
        self._is_unrecorded = np.zeros(slots, np.bool_)
        """[S] bool: the slot's present step is not recorded."""
        self._acted_at = np.full(slots, np.nan)
        self._is_batched = bool(self._batch_of[-1] < slots - 1)
        self._resets_checked_at = -np.inf
        self._commands = 0
        """Number of slots that got a command in this turn."""

    def start(self) -> None:
        """Resets every environment and requests a permit for every slot's first chunk."""
        everyone = np.arange(self._pool.num_slots)
        self._inference.reset(everyone)
        for slot in everyone.tolist():
            self._router.request(slot)
        self._cuts.commands_sent(everyone)
        for alone in np.split(everyone, len(everyone)):
            self._pool.reset(alone, task=self._first_task())

    def turn(self, wait_s: float = MAX_WAIT_S) -> None:
        """Does what can be done, after waiting at most `wait_s` for something to do."""
        ready = self._pool.wait(min(wait_s, self._batcher.due_s))
        self._metrics.slot_time.end_wait(len(ready.slots), ready.idle_s)
        self._process_env_results(ready)
        self._apply_weights()
        self._unblock_slots()
        self._apply_decisions()
        self._request_decisions()
        self._batcher.decide()
        while self._batcher.has_decided:
            self._apply_decisions()
            self._request_decisions()
        self._ship_overdue_fragments()
        self._give_back_room()
        self._cuts.report(self.phase == Phase.WORKING, self._recorder)
        self._metrics.slot_time.wait_for(self._slots_by_wait(), self._commands)
        self._commands = 0

    def is_blocked(self) -> bool:
        """Whether every slot waits for a grant or room, or for one of its batch that does so.

        Nothing will happen before replay answers then.
        """
        is_blocked = self.phase == Phase.BLOCKED
        waits = (self.phase == Phase.WORKING) & np.isin(self._batch_of, self._batch_of[is_blocked])
        return bool(np.all(is_blocked | waits))

    @property
    def resetting(self) -> NDArray[np.bool_]:
        """[S] bool: the slots whose environment is reset, or made anew."""
        is_resetting: NDArray[np.bool_] = (self.phase == Phase.WORKING) & np.isnan(self._acted_at)
        return is_resetting

    def stats(self) -> dict[str, float]:
        """Statistics for `minefleet status`."""
        return {
            "policy_version": self._inference.version,
            **self._metrics.totals(),
            "slots": self._pool.num_slots,
            **self._metrics.slots(
                blocked=self.blocked(),
                resetting=int(np.count_nonzero(self.resetting)),
                cooling_down=self._pool.cooling_down,
                queued=self._router.queued,
            ),
        }

    def lack(self, slot: int) -> str:
        """The reason for which a slot is blocked; empty where it is not."""
        if self.phase[slot] != Phase.BLOCKED:
            return ""
        return LACKS.get(int(self._cuts.lacks[slot])) or self._router.missing(slot)

    def blocked(self) -> Counter[str]:
        """The number of blocked slots by reason."""
        is_blocked = self.phase == Phase.BLOCKED
        lacks = np.where(is_blocked, self._cuts.lacks, 0)
        lacking = self._router.count_blocked(is_blocked & (lacks == 0))
        for lack, reason in LACKS.items():
            if slots := int(np.count_nonzero(lacks == lack)):
                lacking[reason] = slots
        return lacking

    def drain(self) -> None:
        """Closes every open fragment with the steps that are complete, and its stream with it."""
        if self._camera is not None:
            self._camera.stop()
        self._batcher.close()
        for decision in self._batcher.take():
            self._recorder.see(decision.slots, decision.value)
        unseen = np.flatnonzero(self._wants_decision() & self._recorder.pending)
        for start in range(0, len(unseen), self._inference.largest):
            slots = unseen[start : start + self._inference.largest]
            nothing = np.zeros(len(slots), np.bool_)
            decision = self._inference.decide(slots, self._pool.obs, keeps=nothing)
            self._recorder.see(decision.slots, decision.value)
        for slot in range(self._pool.num_slots):
            working = self.phase[slot] == Phase.WORKING
            after = self._recorder.acted_on(slot) if working else self._stored_obs(slot)
            self._ship(slot, after, closes_chunk=True)
        if self._deaths is not None:
            self._deaths.close()  # The actor that takes the place of this one removes what is not whole.

    def _process_env_results(self, ready: Ready) -> None:
        """Writes down what environments answered."""
        stepped = ready.kind == STEP
        if stepped.any():
            self._process_steps(ready, stepped)
        were_reset = ready.slots[ready.kind == RESET]
        self._cuts.were_reset(were_reset)
        for slot in were_reset.tolist():
            self._recorder.play(slot, ready.tasks.get(slot, ""))
            self._router.request(slot, after_another=bool(self._recorder.length[slot]))
            self.phase[slot] = Phase.READY
            if self._deaths is not None:
                self._deaths.began(slot)
        for slot, failure in ready.failures.items():
            self._process_failure(slot, failure, ready.endings[slot].task)

    def _process_steps(self, ready: Ready, stepped: NDArray[np.bool_]) -> None:
        slots, recorded = ready.slots[stepped], ~self._is_unrecorded[ready.slots[stepped]]
        terminated, truncated = ready.terminated[stepped], ready.truncated[stepped]
        discounted, duration = ready.discounted_reward[stepped], ready.duration[stepped]
        self._recorder.result(
            slots[recorded], discounted[recorded], terminated[recorded], truncated[recorded], duration[recorded]
        )
        self._is_unrecorded[slots] = False
        self._episodes.add(slots, ready.reward[stepped], discounted, duration)
        seconds = self._clock() - self._acted_at[slots]
        self._metrics.stepped(self._router.shard_of[slots], seconds)
        self._cuts.stepped(slots, seconds, self._recorder)
        self._acted_at[slots] = np.nan
        self.phase[slots] = Phase.READY
        for slot, dead in zip(slots[terminated | truncated], terminated[terminated | truncated], strict=True):
            self._end_episode(int(slot), bool(dead), ready)

    def _end_episode(self, slot: int, terminated: bool, ready: Ready) -> None:
        ending = ready.endings.get(slot)
        record = self._episodes.end(
            slot,
            self._router.stream(slot),
            version=self._inference.version_of(slot),
            terminated=terminated,
            truncated=not terminated,
            metrics=ending.metrics if ending else None,
            task=ending.task if ending else "",
        )
        self._report(slot, record)
        if terminated:
            self._reset(slot)
        else:
            self.phase[slot] = Phase.AWAITING_BOOTSTRAP

    def _process_failure(self, slot: int, failure: Failure, task: str) -> None:
        """Keeps what came before the failure, as an episode that was cut."""
        if self._deaths is not None:
            played = task or self._recorder.plays(slot)
            self._deaths.keep(slot, failure, played, in_reset=bool(self.resetting[slot]))
        self._metrics.failed(self._router.shard_of[slot], failure.kind)
        before = self.failures[slot].count if slot in self.failures else 0
        self.failures[slot] = SlotFailures(before + 1, failure, self._clock())
        self._acted_at[slot], self._is_unrecorded[slot] = np.nan, False
        record = self._episodes.end(
            slot, self._router.stream(slot), version=self._inference.version_of(slot), task=task, failure=failure.kind
        )
        self._report(slot, record)
        in_flight = self.phase[slot] == Phase.WORKING
        self._recorder.fail(slot)
        if in_flight:
            self._recorder.cut(slot, self._recorder.acted_on(slot))
            self._reset(slot)
        else:
            self.phase[slot] = Phase.AWAITING_BOOTSTRAP

    def _report(self, slot: int, record: episode_pb2.EpisodeRecord) -> None:
        if self._camera is None or not self._camera.end(slot, record):
            self._router.send_episode(slot, record)

    def _reset(self, slot: int) -> None:
        """Starts the next episode. A full fragment leaves first, and one that cannot go on in time after the reset."""
        if self._cuts.begin_reset(slot, self._recorder) or self._recorder.is_full(slot):
            self._ship(slot)
        alone = np.array([slot])
        self._inference.reset(alone)
        self.phase[slot] = Phase.WORKING
        if self._camera is not None:
            self._camera.begin(slot, self._inference.version_of(slot))
        self._cuts.commands_sent(alone)
        self._commands += 1
        self._resets_checked_at = -np.inf
        self._pool.reset(alone, task=self._router.task(slot) or self._first_task())

    def _apply_weights(self) -> None:
        """Passes newer weights on, and says so once they are in use."""
        staged = () if self._worker.deterministic and self._recorder.is_within_fragments() else self._follower.take()
        if staged and self._follower.settings != self._settings:
            self._settings = self._follower.settings
            self.is_outdated = not self._follow(self._settings)
        if staged and not self.is_outdated:
            self._batcher.swap(*staged)
        if self._inference.versions != self._versions:
            self._versions = self._inference.versions
            self._follower.runs(self._versions[0])
            self._metrics.version.set(self._versions[0])
            self._router.notify()

    def _unblock_slots(self) -> None:
        """Unblocks slots whose next fragment may start."""
        for slot in np.flatnonzero(self.phase == Phase.BLOCKED):
            if self._may_start(int(slot)):
                self.phase[slot] = Phase.READY

    def _apply_decisions(self) -> None:
        """Does what was decided. A slot whose episode was cut meanwhile does not act any more."""
        for decision in self._batcher.take():
            self._asked[decision.slots] = False
            self._recorder.see(decision.slots, decision.value)
            slots, ready = decision.slots, self.phase[decision.slots] == Phase.READY
            self._act(decision, ready & decision.keeps)
            for slot in slots[ready & ~decision.keeps].tolist():
                self._ship(slot, self._stored_obs(slot))
            for slot in slots[~ready].tolist():
                self._recorder.cut(slot, self._stored_obs(slot))
                self._reset(slot)

    def _act(self, decision: PolicyStep, acts: NDArray[np.bool_]) -> None:
        """Writes down what the slots do, and lets their environments do it."""
        slots = decision.slots[acts]
        if not len(slots):
            return
        for slot, state in decision.before.items():
            if self.phase[slot] == Phase.READY:
                self._ship(slot, self._stored_obs(slot))
                self._begin(slot, state, decision.version[decision.slots == slot].item())
        action = tree_map(lambda leaf: leaf[acts], decision.action)
        logp, value, first = decision.logp[acts], decision.value[acts], decision.first[acts]
        version = decision.version[acts]
        self._recorder.act(slots, self._inference.stored(self._pool.obs), action, logp, value, first, version)
        if self._camera is not None:
            self._camera.film(slots, value, version)
        if self._deaths is not None:
            self._deaths.act(slots, action)
        self.phase[slots] = Phase.WORKING
        self._acted_at[slots] = self._clock()
        self._cuts.commands_sent(slots)
        self._commands += len(slots)
        self._pool.step(slots, action)

    def _request_decisions(self) -> None:
        """Asks for a decision for every slot that wants one: to act, or only to know the value of what it sees."""
        if self._worker.deterministic and np.any(self.phase == Phase.WORKING):
            return
        slots = np.flatnonzero(self._wants_decision() & ~self._asked)
        if len(slots):
            ready, steps = self.phase[slots] == Phase.READY, self._recorder.length[slots]
            full = (steps == self._recorder.fragment_length) | self._cuts.due(slots, self._recorder)
            border = ready & (full | (steps == 0))
            acts = ready & ~border
            acts[border] = [self._may_start(slot) for slot in slots[border].tolist()]
            self.phase[slots[border & ~full & ~acts]] = Phase.BLOCKED
            wants = ~ready | acts | full
            self._asked[slots[wants]] = True
            self._batcher.want(slots[wants], acts[wants], (acts & border)[wants])
        if self._is_batched:
            self._request_unrecorded_steps()

    def _request_unrecorded_steps(self) -> None:
        """Lets blocked slots go on without a fragment where others of their batch wait for them."""
        is_blocked = self.phase == Phase.BLOCKED
        if not is_blocked.any():
            return
        goes_on = (self.phase == Phase.WORKING) & ~self._is_unrecorded
        for slot in np.flatnonzero(goes_on & self.resetting & (self._recorder.length == 0)):
            goes_on[slot] = self._may_start(int(slot))
        slots = np.flatnonzero(is_blocked & np.isin(self._batch_of, self._batch_of[goes_on]))
        if len(slots):
            self.phase[slots] = Phase.READY
            self._asked[slots] = self._is_unrecorded[slots] = True
            self._batcher.want(slots, np.ones(len(slots), np.bool_), np.zeros(len(slots), np.bool_))

    def _wants_decision(self) -> NDArray[np.bool_]:
        """[S] bool: the slots that want a decision, or the value of what they see."""
        wanting: NDArray[np.bool_] = (self.phase == Phase.READY) | (self.phase == Phase.AWAITING_BOOTSTRAP)
        return wanting

    def _slots_by_wait(self) -> Waiting:
        """The number of slots by what they wait for."""
        # Bytes are counted, since that takes less than any call of NumPy.
        phases = self.phase.tobytes()
        working, held = phases.count(Phase.WORKING), phases.count(Phase.BLOCKED)
        waiting = (ENVIRONMENT, working), (INFERENCE, len(phases) - working - held)
        return (*waiting, *self.blocked().items()) if held else waiting

    def _begin(self, slot: int, recurrent_state: Tree, version: int) -> None:
        """Opens the slot's next fragment, and requests the one after it ahead, so that no grant is waited for idly."""
        self._recorder.begin(slot, recurrent_state)
        self._router.begin(slot, version, self._cuts.step_s(slot), self._recorder.plays(slot))
        self._cuts.began(slot)

    def _ship_overdue_fragments(self) -> None:
        """Ships what has been due since its slot was given something to do: its environment takes long."""
        for slot in self._cuts.overdue(self.phase == Phase.WORKING, self._recorder):
            if np.isnan(self._acted_at[slot]):
                self._ship(slot, closes_chunk=True)
            elif self._router.has_room(slot):
                version, first = self._recorder.in_flight(slot)
                state = self._inference.state_before(slot, first=first)
                task, fragment = self._recorder.task(slot), self._recorder.split(slot, state)
                self._send(slot, fragment, task, closes_chunk=True)
                self._router.begin(slot, version, self._cuts.step_s(slot), self._recorder.plays(slot))
                self._cuts.began(slot)

    def _give_back_room(self) -> None:
        """Lets others have the room of chunks that wait for a long reset.

        Not in a batch: there a reset waits for commands to all others, also to those without room.
        """
        if self._is_batched or self._clock() < self._resets_checked_at + RESET_CHECK_S:
            return
        self._resets_checked_at = self._clock()
        for slot in self._cuts.long_resets(self.resetting):
            self._router.give_back(slot)

    def _closes_chunk(self, slot: int) -> bool:
        """Whether the slot's fragment is the last of its chunk, though that might have more."""
        return not self._recorder.is_full(slot) or not self._cuts.has_time(slot)

    def _ship(self, slot: int, after: Tree | None = None, *, closes_chunk: bool = False) -> None:
        """Closes the slot's fragment, queues it, and requests the chunk of the next one.

        Its chunk ends with it where nothing more fits into it, or `closes_chunk`.
        """
        closes_chunk = closes_chunk or self._closes_chunk(slot)
        task, fragment = self._recorder.task(slot), self._recorder.close(slot, after)
        if fragment is not None:
            self._send(slot, fragment, task, closes_chunk=closes_chunk)
            self._cuts.ended(slot)

    def _send(self, slot: int, fragment: Fragment, task: str, *, closes_chunk: bool) -> None:
        self._router.send(slot, fragment, task=task, closes_chunk=closes_chunk)
        self._router.request(slot)

    def _may_start(self, slot: int) -> bool:
        """Whether the fragment after the open one may be started."""
        after_another = bool(self._recorder.length[slot])
        closes_chunk = after_another and self._closes_chunk(slot)
        may_start = self._router.may_start(slot, after_another=after_another, closes_chunk=closes_chunk)
        return self._cuts.may_start(slot, self._inference.version_of(slot), is_granted=may_start)

    def _stored_obs(self, slot: int) -> Tree:
        """The stored form of the slot's observation, which has been decided for."""
        return tree_map(lambda leaf: leaf[slot], self._inference.stored(self._pool.obs))
