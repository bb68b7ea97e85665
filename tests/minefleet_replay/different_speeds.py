"""Slow environments beside fast ones, simulated: the loop of an actor and replay are real, all else is not.

A task's environments all take as long for a step, and as long for a reset. The learner leases an iteration ahead,
trains for a while, publishes, and acks. What is trained on is counted by task and by the part of the episode.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from minefleet.config import RolloutConfig, WorkerConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree
from minefleet.rpc.replay_types import LeaseForecast, Reservation
from minefleet.v1 import fragment_pb2
from minefleet_actor.inference.batcher import InferenceBatcher
from minefleet_actor.inference.policy_outputs import PolicyStep
from minefleet_actor.loop import Actor
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.pool import EpisodeEnd, Kind, Ready, Slots
from minefleet_actor.replay_io.permits import RolloutPermits
from minefleet_actor.replay_io.stream_router import ShardConnection, StreamRouter
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.freshness_cuts import FreshnessCuts
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.stream_pace import StreamState

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(2,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
)
EPISODE = 50
"""Steps of an episode, unless a task says otherwise."""
START, MIDDLE, END = range(3)
EDGE = 5
"""Steps that are the start of an episode, and so many the end."""
WAY_S = 0.02
"""From an actor to replay."""
ASK_S = 0.02
TICK_S = 1.0
FRAGMENT, LEAST = 32, 8
HICCUPS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The task of some environments."""

    name: str
    slots: int
    step_s: float
    reset_s: float
    reset_spread: float = 0.0
    """A reset may take longer or shorter by such a share."""
    hiccup_s: float = 0.0
    """One step in `HICCUPS` takes so much longer."""
    beside_learner: float = 1.0
    """Steps take so many times as long while the learner trains."""
    episode: int = EPISODE
    """Steps of an episode; of the first one of each environment as many as chance says."""


@dataclass(slots=True)
class Count:
    """Steps by task and part of the episode."""

    trained: Counter[tuple[str, int]] = field(default_factory=Counter)
    lost: Counter[tuple[str, int]] = field(default_factory=Counter)
    too_slow: set[str] = field(default_factory=set)
    """The streams of which replay has said so."""

    def share(self, task: str, *parts: int) -> float:
        """Of the steps whose fate is known, those that were trained on; 1 where there are none."""
        parts = parts or (START, MIDDLE, END)
        trained, lost = (sum(counts[task, part] for part in parts) for counts in (self.trained, self.lost))
        return trained / (trained + lost) if trained + lost else 1.0


class Environments:
    """A pool: each command is answered when its environment's time is over."""

    cooling_down = 0

    def __init__(self, tasks: Sequence[Task], learner: "Learner", clock: Callable[[], float]) -> None:
        self._task = [task for task in tasks for _ in range(task.slots)]
        self._learner = learner
        self._clock = clock
        self._rng = np.random.default_rng(0)
        self.num_slots = len(self._task)
        self.frames = np.zeros((self.num_slots, 0, 0, 3), np.uint8)
        self.obs: Tree = np.zeros((self.num_slots, 2), np.float32)
        self._step = np.zeros(self.num_slots, np.intp)
        self._last = np.array([task.episode for task in self._task])
        self._begins_at = self._rng.integers(self._last)
        self._due: list[tuple[float, int, Kind]] = []

    @property
    def next_s(self) -> float:
        """When the next environment is ready."""
        return self._due[0][0] if self._due else np.inf

    def step(self, slots: Slots, action: Tree) -> None:
        """Takes as long as the task says."""
        for slot in slots.tolist():
            task = self._task[slot]
            takes_s = task.step_s * (task.beside_learner if self._learner.trains else 1.0)
            takes_s += task.hiccup_s * (self._rng.random() * HICCUPS < 1)
            heapq.heappush(self._due, (self._clock() + takes_s, slot, Kind.STEP))

    def reset(self, slots: Slots, *, task: str) -> None:
        """Likewise."""
        for slot in slots.tolist():
            of_slot = self._task[slot]
            takes_s = of_slot.reset_s * (1 + of_slot.reset_spread * (2 * self._rng.random() - 1))
            heapq.heappush(self._due, (self._clock() + takes_s, slot, Kind.RESET))

    def wait(self, timeout_s: float) -> Ready:
        """The slots that are ready now."""
        kinds: dict[int, Kind] = {}
        while self._due and self._due[0][0] <= self._clock():
            _, slot, kind = heapq.heappop(self._due)
            kinds[slot] = kind
            self._step[slot] = self._step[slot] + 1 if kind == Kind.STEP else self._begins_at[slot]
            self._begins_at[slot] *= kind == Kind.STEP
            self.obs[slot, 0] = self._step[slot]
        slots = np.array(sorted(kinds), np.intp)
        answered = np.array([kinds[slot] for slot in slots.tolist()], np.uint8)
        return Ready(
            slots=slots,
            kind=answered,
            reward=np.zeros(len(slots), np.float32),
            discounted_reward=np.zeros(len(slots), np.float32),
            duration=np.ones(len(slots), np.uint32),
            terminated=(answered == Kind.STEP) & (self._step[slots] == self._last[slots]),
            truncated=np.zeros(len(slots), np.bool_),
            endings=defaultdict(EpisodeEnd),
            tasks={slot: self._task[slot].name for slot in kinds},
            failures={},
        )

    def wake(self) -> None: ...


class Nobody:
    """Decides at once, and nothing."""

    def __init__(self, slots: int) -> None:
        self.versions, self.largest = (1,), slots
        self._first = np.ones(slots, np.bool_)

    def reset(self, slots: Slots) -> None:
        """The next observations are the first of an episode."""
        self._first[slots] = True

    @property
    def version(self) -> int:
        """The version in use."""
        return self.versions[0]

    def version_of(self, slot: int) -> int:
        """The same for every slot."""
        return self.version

    def swap(self, weights: Any, version: int, *, canary: bool) -> None:
        """Newer weights."""
        self.versions = (version,)

    def stored(self, obs: Tree) -> Tree:
        """The stored form of it: the same."""
        return obs

    def decide(self, slots: Slots, obs: Tree, *, keeps: NDArray[np.bool_], begins: NDArray[np.bool_]) -> PolicyStep:
        """Zeros."""
        zeros, first = np.zeros(len(slots), np.float32), self._first[slots]
        self._first[slots[keeps]] = False
        return PolicyStep(
            slots=slots,
            keeps=keeps,
            action=np.zeros(len(slots), np.int64),
            logp=zeros,
            value=zeros,
            first=first,
            before={slot: {} for slot in slots[begins].tolist()},
            version=np.full(len(slots), self.version, np.uint32),
        )

    def state_before(self, slot: int, *, first: bool) -> Tree:
        """There is none."""
        return {}


class Post:
    """The way of fragments to replay, and of weights from the learner."""

    run_id = settings = ""

    def __init__(self, world: Any, tasks: Sequence[Task]) -> None:
        self._world = world
        self._episode = {task.name: task.episode for task in tasks}
        self._sent: list[tuple[float, fragment_pb2.FragmentHeader, Fragment]] = []
        self.parts: dict[tuple[str, int], Counter[tuple[str, int]]] = {}
        """Contents of each fragment that is not settled yet."""

    def __len__(self) -> int:
        return len(self._sent)

    def has_room(self, coming: int) -> bool:
        """Always."""
        return True

    def send(self, header: fragment_pb2.FragmentHeader, fragment: Fragment) -> None:
        """Puts a fragment on its way."""
        self._sent.append((self._world.clock() + WAY_S, header, fragment))

    def report(self, episode: Any) -> None:
        """Nobody reads it."""

    def arrive(self, count: Count) -> None:
        """Hands over what has come."""
        while self._sent and self._sent[0][0] <= self._world.clock():
            _, header, fragment = self._sent.pop(0)
            name, steps = (header.name.stream, header.name.sequence), fragment.obs[:, 0]
            part = np.select([steps < EDGE, steps >= self._episode[header.task] - EDGE], [START, END], MIDDLE)
            versions = fragment.policy_version
            stored = self._world.append(
                *name,
                int(versions.min()),
                newest=int(versions.max()),
                chunk=(header.chunk, header.chunk_start),
                closes=header.closes_chunk,
                steps=len(fragment),
                task=header.task,
            )
            self.parts[name] = Counter((header.task, one) for one in part.tolist())
            if stored == "expired":
                count.lost += self.parts.pop(name)

    def take(self) -> Any:
        """Newer weights, if there are any."""
        return self._world.staged or ()

    def runs(self, version: int) -> None:
        """The actor has them."""
        self._world.staged = None


class Client:
    """Replay, as `RolloutPermits` asks it."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def reserve(self, version: int, chunks: Any, streams: Any, returned: Any) -> Reservation:
        """As over the network."""
        states = [
            StreamState(
                one.stream,
                one.chunk,
                one.oldest_version if one.HasField("oldest_version") else None,
                one.step_time.ToNanoseconds() / 1e9,
                one.task,
            )
            for one in streams
        ]
        names, back = ([ChunkName(*chunk) for chunk in some] for some in (chunks, returned))
        answer = self._world.replay.reserve(version, names, states, back)
        closing = answer.closing
        return Reservation(
            granted=[grant.granted for grant in answer.grants],
            too_slow=[grant.too_slow for grant in answer.grants],
            ahead=[grant.ahead for grant in answer.grants],
            tasks=[grant.task for grant in answer.grants],
            longest_chunk_s=answer.longest_chunk_s,
            closing=closing
            and LeaseForecast(
                use_version=closing.use_version,
                closes_in_s=closing.closes_in_s,
                waits_s=closing.waits_s,
                interval_s=closing.interval_s,
            ),
            retry_after_s=answer.retry_after_s,
            newest_version=answer.newest_version,
            wants_newer_weights=answer.wants_newer_weights,
        )


class Learner:
    """Trains on each iteration for so long; leases the next one meanwhile, where that can be used."""

    def __init__(self, world: Any, train_s: float, staged: Callable[[int], Any]) -> None:
        self._world, self._train_s, self._staged = world, train_s, staged
        self._ahead = world.limits.max_staleness > 0
        self._leased: list[tuple[int, list[Any]]] = []
        self._leases = 0
        self.done_s = np.inf

    @property
    def trains(self) -> bool:
        """Whether it trains now."""
        return bool(np.isfinite(self.done_s))

    def tick(self) -> list[Any]:
        """Does what is due. Returns the chunks that were trained on, if any were."""
        now, version, done = self._world.clock(), self._world.learner.version, list[Any]()
        if now >= self.done_s:
            number, chunks = self._leased.pop(0)
            self._world.hear(version := version + 1)
            self._world.ack(number)
            self._world.staged, self.done_s = self._staged(version), np.inf
            done = chunks
        if len(self._leased) <= self._ahead and (chunks := self._lease(version + len(self._leased))):
            self._leases += 1
            self._leased.append((self._leases, chunks))
        if self._leased and np.isinf(self.done_s):
            self.done_s = now + self._train_s
        return done

    def _lease(self, use_version: int) -> list[Any]:
        chunks = self._world.lease(self._leases + 1, self._world.limits.steps_per_iteration, use_version, "least_used")
        assert all(use_version - chunk.oldest_version <= self._world.limits.max_staleness for chunk in chunks)
        return list(chunks)


def simulate(
    world: Any,
    tasks: Sequence[Task],
    *,
    seconds: float,
    warm_s: float,
    train_s: float,
    staged: Callable[[int], Any],
    cuts: bool = True,
) -> Count:
    """Lets time pass, and counts what becomes of the steps that are settled after `warm_s`.

    Args:
        world: As `make_world` makes it, with `chunk_steps` of `FRAGMENT` and `least_steps` of `LEAST`.
        tasks: What is played.
        seconds: How long.
        warm_s: How much of that is not counted.
        train_s: How long the learner trains on an iteration.
        staged: Makes newer weights of a version.
        cuts: Whether fragments may end before they are full.
    """
    world.staged, clock = None, world.clock
    learner, counts = Learner(world, train_s, staged), [Count(), Count()]
    pool, post, inference = (
        Environments(tasks, learner, clock),
        Post(world, tasks),
        Nobody(sum(task.slots for task in tasks)),
    )
    grants = RolloutPermits(
        Client(world),  # type: ignore[arg-type]
        version=lambda: inference.version,
        granted=lambda: None,
        renew_s=20.0,
        max_staleness=world.limits.max_staleness,
        clock=clock,
    )
    lanes = StreamRouter(
        "a",
        pool.num_slots,
        [ShardConnection(name="", permits=grants, uploader=post)],  # type: ignore[arg-type]
        fragments_per_chunk=1,
    )
    actor = Actor(
        pool=pool,  # type: ignore[arg-type]
        inference=inference,  # type: ignore[arg-type]
        batcher=InferenceBatcher(inference, lambda: pool.obs),  # type: ignore[arg-type]
        recorder=Recorder(SCHEMA, pool.num_slots, FRAGMENT),
        episodes=RunningEpisodes(pool.num_slots, 0.9),
        router=lanes,
        follower=post,  # type: ignore[arg-type]
        metrics=ActorMetrics(CollectorRegistry(), "actor", 1),
        rollout=RolloutConfig(fragment_length=FRAGMENT, worker_config=WorkerConfig(num_envs=pool.num_slots)),
        cuts=FreshnessCuts(
            lanes,
            pool.num_slots,
            least_steps=LEAST,
            fragment_length=FRAGMENT,
            chunk_steps=FRAGMENT,
            enabled=cuts,
            balanced=world.limits.balance != "speed",
            clock=clock,
        ),
        clock=clock,
    )
    began = ask_at = tick_at = clock()
    actor.start()
    while clock() < began + seconds:
        count = counts[clock() >= began + warm_s]
        actor.turn(0.0)
        if clock() >= ask_at:
            grants.reserve()
            ask_at = clock() + ASK_S
        post.arrive(count)
        for chunk in learner.tick():
            for fragment in chunk.fragments:
                count.trained += post.parts.pop((chunk.name.stream, fragment.sequence), Counter())
        if clock() >= tick_at:
            world.replay.tick()
            settle(world, post, count)
            count.too_slow |= world.replay.transactions.streams.too_slow.keys()
            tick_at = clock() + TICK_S
        world.clock.now_s = min(max(min(pool.next_s, learner.done_s), clock() + 0.001), clock() + ASK_S)
    return counts[1]


def settle(world: Any, post: Post, count: Count) -> None:
    """Counts what has left replay untrained."""
    held = {
        (chunk.name.stream, fragment.sequence)
        for chunk in world.replay.transactions.state.index
        for fragment in chunk.fragments
    }
    for name in [name for name in post.parts if name not in held]:
        count.lost += post.parts.pop(name)
