"""Plays a fixed number of whole episodes, for evaluation.

Every slot has its own share of the episodes. Taking whichever finish first instead would favour short ones. Tasks and
noise are a slot's own, too: whichever environment is faster, the same seed and weights play the same episodes, where
none fails and no batch of environments steps together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from minefleet.config import WorkerConfig
from minefleet.policies import build
from minefleet.runs.run_yaml import Run
from minefleet.v1 import episode_pb2
from minefleet_actor.inference.compiled_forward import ForwardOptions
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.pool import EnvPool, Kind, Pool, Ready
from minefleet_actor.pool.episode_seed import episode_seed
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.episode_video import Reel, caption_of
from minefleet_actor.video.frame_source import Lens, make_lens

WAIT_S = 1.0
MAX_POOL_ENVS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A finished episode and what the policy thought of it."""

    record: episode_pb2.EpisodeRecord
    value_mean: float
    """Mean value estimate over the episode, in reward units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """The film of the first whole episode of slot 0."""

    lens: Lens
    reel: Reel
    name: str
    """Of the file."""


class Player:
    """Plays episodes with one policy; a context manager that starts and closes its pool."""

    def __init__(
        self,
        pool: Pool,
        inference: PolicyRunner,
        discount: float,
        recording: Recording | None = None,
        tasks: Iterable[str] = (),
        *,
        batched: bool = False,
    ) -> None:
        self.inference = inference
        self.video: Path | None = None
        """The file, once it is written."""
        self._recording = recording
        self._pool = pool
        self._tasks = [*tasks] or [""]
        """Played in turn, by the numbers of episodes."""
        self._numbers = np.arange(pool.num_slots)
        """[S], of the episode that each slot plays; after a failure the next one, which another slot plays, too."""
        self._asked = 0
        """Episodes of earlier calls of `play`."""
        self._episodes = RunningEpisodes(pool.num_slots, discount, evaluation=True)
        self._values = np.zeros(pool.num_slots)
        self._steps = np.zeros(pool.num_slots)
        self._left = np.zeros(pool.num_slots, np.int64)
        self._batched = batched
        """Whether environments step together, so that none may stop before the others."""
        self._is_under_way = np.zeros(pool.num_slots, np.bool_)
        """[S] bool: the episode was begun for an earlier `play`, and is not counted."""

    def __enter__(self) -> "Player":
        self._pool.start()
        if self._recording is not None:
            self._pool.film(0, True)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        if self._recording is not None:
            self._recording.reel.discard()

    def play(self, episodes: int, stream: str) -> Iterator[Played]:
        """Yields so many episodes as they end; failed ones are played again."""
        slots = np.arange(self._pool.num_slots)
        self._numbers, self._asked = self._asked + slots, self._asked + episodes
        self._left = (episodes + len(slots) - 1 - slots) // len(slots)
        self._begin(slots[((self._left > 0) | self._batched) & ~self._is_under_way])
        while self._left.any():
            ready = self._pool.wait(WAIT_S)
            yield from self._ended(ready, stream)
            self._act(ready)
        self._is_under_way[:] = self._batched

    def _begin(self, slots: NDArray[np.intp]) -> None:
        self.inference.reset(slots)
        self._values[slots] = self._steps[slots] = 0
        for slot in slots.tolist():
            self._pool.reset(np.array([slot]), task=self._tasks[self._numbers[slot] % len(self._tasks)])

    def _ended(self, ready: Ready, stream: str) -> Iterator[Played]:
        """Ends the episodes that are over and begins the slots' next ones."""
        stepped = ready.kind == Kind.STEP
        self._episodes.add(
            *(rows[stepped] for rows in (ready.slots, ready.reward, ready.discounted_reward, ready.duration))
        )
        over = stepped & (ready.terminated | ready.truncated)
        for slot, terminated in zip(ready.slots[over], ready.terminated[over], strict=True):
            played = self._end(int(slot), bool(terminated), ready, stream)
            if self._left[slot] and not self._is_under_way[slot]:
                self._left[slot] -= 1
                yield played
        again = over | (ready.kind == Kind.FAILED)
        for slot in ready.slots[ready.kind == Kind.FAILED]:
            self._episodes.end(int(slot), stream, version=self.inference.version)
            if slot == 0 and self._recording is not None:
                self._recording.reel.discard()
        self._is_under_way[ready.slots[again]] = False
        self._numbers[ready.slots[over]] += self._pool.num_slots
        self._numbers[ready.slots[ready.kind == Kind.FAILED]] += 1
        self._begin(ready.slots[again & ((self._left[ready.slots] > 0) | self._batched)])

    def _end(self, slot: int, terminated: bool, ready: Ready, stream: str) -> Played:
        ending = ready.endings.get(slot)
        record = self._episodes.end(
            slot,
            f"{stream}-{slot}",
            version=self.inference.version,
            terminated=terminated,
            truncated=not terminated,
            metrics=ending.metrics if ending else None,
            task=ending.task if ending else "",
        )
        if slot == 0 and self._recording is not None:
            recording, self._recording = self._recording, None
            last = recording.lens(0), self._episodes.last_reward(0)
            self.video = recording.reel.finish(recording.name, *last, record)
            self._pool.film(0, False)
        return Played(record=record, value_mean=float(self._values[slot] / max(self._steps[slot], 1)))

    def _act(self, ready: Ready) -> None:
        going = (ready.kind == Kind.RESET) | ((ready.kind == Kind.STEP) & ~ready.terminated & ~ready.truncated)
        slots = ready.slots[going]
        if not len(slots):
            return
        decision = self.inference.decide(slots, self._pool.obs)
        self._values[slots] += decision.value
        self._steps[slots] += 1
        if 0 in slots and self._recording is not None:
            caption = caption_of(self._episodes, 0, float(decision.value[slots == 0][0]), self.inference.version)
            self._recording.reel.add(self._recording.lens(0), caption)
        self._pool.step(slots, decision.action)


def make_player(
    run: Run, *, episodes: int, seed: int, index: int = 0, greedy: bool = True, video: Path | None = None
) -> Player:
    """Builds a player with a fresh policy and a pool for so many episodes, both on the CPU.

    Args:
        run: The run whose environment and policy it is.
        episodes: How many are to be played.
        seed: Of the environments and the sampling.
        index: Of the actor that its environments are seeded for.
        greedy: Take the likeliest actions instead of a sample.
        video: The file in which one of the episodes is to be filmed.

    Raises:
        ConfigError: If there is nothing to film.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    slots = min(episodes, MAX_POOL_ENVS)
    wanted = run.config.rollout_config.worker_config
    worker = WorkerConfig(
        num_envs=slots,
        envs_per_process=MAX_POOL_ENVS // 2,
        start_timeout_s=wanted.start_timeout_s,
        reset_timeout_s=wanted.reset_timeout_s,
        step_timeout_s=wanted.step_timeout_s,
    )
    inference = PolicyRunner(
        build(run.config.policy, run.schema, run.config.path_map),
        run.schema,
        slots,
        device=torch.device("cpu"),
        seed=episode_seed(seed, index, slots, 0),
        greedy=greedy,
        noise_per_slot=not greedy,
        options=ForwardOptions(whole=True),
    )
    discount = run.config.train_config.discount
    pool = EnvPool(
        run.config.env, run.schema, worker, seed=seed, actor_index=index, frame_shape=run.frame_shape, discount=discount
    )
    recording = None
    if video is not None:
        reel = Reel(video.parent, run.config.rollout_config.worker_config.video_fps)
        recording = Recording(lens=make_lens(run, pool), reel=reel, name=video.name)
    env = run.config.env
    return Player(pool, inference, discount, recording, env.tasks, batched=env.batched)
