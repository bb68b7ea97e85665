"""The actor's loop over environments that end, are cut and fail at random, audited step by step."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from torch import Tensor, nn

from minefleet.config import ReplayBufferConfig, RolloutConfig, WorkerConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree
from minefleet.policies import Policy, PolicyOutput
from minefleet.policies.layers.heads import action_head
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet.policies.stored_encoder_outputs import KEY, FrozenEncoder
from minefleet.policies.weight_arrays import Weights, to_numpy
from minefleet.v1 import episode_pb2, fragment_pb2
from minefleet_actor.inference.batcher import InferenceBatcher
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_actor.inference.weight_sync import Staged
from minefleet_actor.loop import Actor
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.metrics.wait_time_breakdown import SlotTimer
from minefleet_actor.pool import EpisodeEnd, Failure, Kind, Ready, Slots
from minefleet_actor.replay_io.permits import StreamVerdict
from minefleet_actor.replay_io.stream_router import ShardConnection, StreamRouter, shard_numbers
from minefleet_actor.rollout.fragment_recorder import Recorder
from minefleet_actor.rollout.freshness_cuts import FreshnessCuts
from minefleet_actor.rollout.running_episodes import RunningEpisodes

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(1,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(3,)),
)
SLOTS = 5
CAPACITY = 1
STEPS = 600
PER_CHUNK = 2
MAX_TURNS = 10_000
LEAST_STEPS = 3
AHEAD = 1000
"""Versions by which canary slots are ahead."""


class NumberedPool:
    """Every observation is a number of its own, rising in each slot; ends, cuts and failures are drawn."""

    num_slots = SLOTS
    cooling_down = 0
    rests_until_s = np.full(0, -np.inf)

    def __init__(self, seed: int) -> None:
        self.frames = np.zeros((SLOTS, 0, 0, 3), np.uint8)
        self.obs: Tree = np.zeros((SLOTS, 1), np.float32)
        self.steps = 0
        self._rng = np.random.default_rng(seed)
        self._number = 1000.0 * np.arange(1, SLOTS + 1)
        self._wanted: dict[int, Kind] = {}

    def start(self) -> None: ...

    def close(self) -> None: ...

    def wake(self) -> None: ...

    def film(self, slot: int, on: bool) -> None: ...

    def step(self, slots: Slots, action: Tree) -> None:
        assert action.shape == slots.shape
        self._want(slots, Kind.STEP)

    def reset(self, slots: Slots, *, task: str) -> None:
        self._want(slots, Kind.RESET)

    def wait(self, timeout_s: float) -> Ready:
        """Answers about half of what was asked; now and then a slot fails, asked or not."""
        kinds: dict[int, Kind] = {}
        for slot, kind in list(self._wanted.items()):
            if self._rng.random() < 0.5:
                kinds[slot] = Kind.FAILED if self._rng.random() < 0.05 else kind
                del self._wanted[slot]
        for slot in range(SLOTS):
            if slot not in self._wanted and slot not in kinds and self.steps and self._rng.random() < 0.01:
                kinds[slot] = Kind.FAILED
        return self._ready(dict(sorted(kinds.items())))

    def _want(self, slots: Slots, kind: Kind) -> None:
        for slot in slots.tolist():
            assert slot not in self._wanted
            self._wanted[slot] = kind

    def _ready(self, kinds: dict[int, Kind]) -> Ready:
        slots = np.array(list(kinds), np.intp)
        kind = np.array(list(kinds.values()), np.uint8)
        stepped = kind == Kind.STEP
        shown = slots[kind != Kind.FAILED]
        self._number[shown] += 1
        self.obs[shown, 0] = self._number[shown]
        self.steps += int(stepped.sum())
        reward = np.where(stepped, self.obs[slots, 0], 0).astype(np.float32)
        return Ready(
            slots=slots,
            kind=kind,
            reward=reward,
            discounted_reward=reward,
            duration=np.ones(len(slots), np.uint32),
            terminated=stepped & (self._rng.random(len(slots)) < 0.1),
            truncated=stepped & (self._rng.random(len(slots)) < 0.1),
            endings=defaultdict(EpisodeEnd),
            tasks={slot: f"task {slot % 2}" for slot in range(SLOTS)},
            failures={int(slot): Failure("exception", "it raised") for slot in slots[kind == Kind.FAILED]},
        )


ACTIONS = 3


class NumberPolicy(Policy):
    """Values an observation at its number and counts the steps since the reset in its state.

    Its version is in what it does: version v takes action v mod 3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.action_head = action_head(SCHEMA.action, 1)
        self.value_norm = ValueNorm()
        self.register_buffer("favourite", torch.zeros(ACTIONS))
        self.encoder = nn.Identity()

    def initial_state(self, batch: int) -> Tree:
        return {"count": torch.zeros(batch, 1)}

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        assert obs.shape[1] == 1
        count = state["count"].masked_fill(first, 0.0) + 1
        logits = self.get_buffer("favourite").expand(*obs.shape[:2], ACTIONS)
        value = self.encoder(obs)[..., 0]
        encoded = self.frozen_encoder.made() if self.frozen_encoder else {}
        return PolicyOutput(logits, value, encoded), {"count": count}


def frozen_policy() -> NumberPolicy:
    """A policy whose encoder's outputs are stored, and no observation."""
    policy = NumberPolicy()
    policy.frozen_encoder = FrozenEncoder(policy, policy.encoder)
    policy(torch.zeros(1, 1, 1), policy.initial_state(1), torch.zeros(1, 1, dtype=torch.bool))
    policy.frozen_encoder.blank[""] = SCHEMA.obs
    return policy


def weights_of(version: int) -> Weights:
    return to_numpy(NumberPolicy()) | {"favourite": (1000 * np.eye(ACTIONS, dtype=np.float32))[version % ACTIONS]}


def slot_of(stream: str) -> int:
    return int(stream.removeprefix("actor-"))


def staged(*versions: int) -> Staged:
    return [(weights_of(version), version) for version in versions]


class BatchedPool(NumberedPool):
    """All slots are one batch: it does nothing before each has a command."""

    def wait(self, timeout_s: float) -> Ready:
        kinds = dict(sorted(self._wanted.items())) if len(self._wanted) == SLOTS else {}
        if kinds:
            self._wanted.clear()
            if self._rng.random() < 0.01:
                kinds = dict.fromkeys(kinds, Kind.FAILED)
        return self._ready(kinds)


class ResettingPool(BatchedPool):
    """Resets by itself: steps that were wanted beside a reset wait for the next turn."""

    def wait(self, timeout_s: float) -> Ready:
        resets = dict.fromkeys((slot for slot in sorted(self._wanted) if self._wanted[slot] == Kind.RESET), Kind.RESET)
        if not resets or len(self._wanted) < SLOTS:
            return super().wait(timeout_s)
        for slot in resets:
            del self._wanted[slot]
        return self._ready(dict[int, Kind](resets))


class Sent(NamedTuple):
    """A fragment that has been queued."""

    header: fragment_pb2.FragmentHeader
    fragment: Fragment


class Post:
    """Stands for uploader, permits and weight sync: keeps what is sent; sends and grants at random."""

    run_id = settings = ""
    needs_newer_weights = False
    interval_s = 1.0
    longest_chunk_s = 0.0
    forecasts = 0
    ahead: tuple[int, ...] = (0,)

    def __init__(self, seed: int, due: float = 0.0) -> None:
        self.due = due
        """Share of chunks that must end at once."""
        self.fragments: list[Sent] = []
        self.waiting = self.most_waiting = 0
        self.episodes: list[episode_pb2.EpisodeRecord] = []
        self.requested: set[tuple[str, int]] = set()
        self.version = 1
        self.used: list[int] = []
        self._rng = np.random.default_rng(seed)

    def has_room(self, coming: int) -> bool:
        self.waiting -= int(self.waiting > 0 and self._rng.random() < 0.3)
        return self.waiting + coming < CAPACITY

    def task(self, stream: str) -> str:
        return ""

    def send(self, header: fragment_pb2.FragmentHeader, fragment: Fragment) -> None:
        self.waiting += 1
        self.most_waiting = max(self.waiting, self.most_waiting)
        assert (header.name.stream, header.chunk) in self.requested
        assert header.name.sequence - header.chunk_start < PER_CHUNK - (not header.closes_chunk)
        self.fragments.append(Sent(header, fragment))

    def report(self, episode: episode_pb2.EpisodeRecord) -> None:
        self.episodes.append(episode)

    def request(self, chunk: tuple[str, int]) -> None:
        self.requested.add(chunk)

    def give_back(self, chunk: tuple[str, int]) -> None:
        if not any(
            queued.header.name.stream == chunk[0] and queued.header.chunk == chunk[1] for queued in self.fragments
        ):
            self.requested.discard(chunk)

    def is_granted(self, chunk: tuple[str, int]) -> bool:
        return chunk in self.requested and bool(self._rng.random() < 0.5)

    def release(self, chunk: tuple[str, int]) -> None: ...

    def begin(self, chunk: tuple[str, int], oldest_version: int, step_s: float, task: str = "") -> None: ...

    def report_pace(self, chunk: tuple[str, int], step_s: float, task: str = "") -> None: ...

    def verdict(self, stream: str) -> StreamVerdict:
        return StreamVerdict()

    def deadline(self, oldest_version: int, *, at_most: bool = False) -> float:
        """Now and then it is over, and for a fragment to come not the next time."""
        self.forecasts += bool(self.due)
        return -np.inf if self._rng.random() < self.due else np.inf

    def notify(self) -> None: ...

    def take(self) -> Staged:
        """New weights, now and then."""
        if self._rng.random() > 0.1:
            return ()
        self.version += 1
        return staged(*(self.version + ahead for ahead in self.ahead))

    def runs(self, version: int) -> None:
        self.used.append(version)


class Scarce(Post):
    """Grants as many chunks as there are slots, and no more before all of those are whole."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.granted: set[tuple[str, int]] = set()
        self.whole = 0

    def has_room(self, coming: int) -> bool:
        return True

    def is_granted(self, chunk: tuple[str, int]) -> bool:
        if chunk in self.requested and len(self.granted) < SLOTS * (1 + self.whole // SLOTS):
            self.granted.add(chunk)
        return chunk in self.granted

    def release(self, chunk: tuple[str, int]) -> None:
        self.whole += 1


class Spent(Scarce):
    """Grants as many chunks as there are slots, and never any more."""

    def release(self, chunk: tuple[str, int]) -> None: ...


class Deaths:
    """Stands in for the recorder of deaths."""

    is_closed = False

    def act(self, slots: NDArray[np.intp], action: Tree) -> None: ...

    def began(self, slot: int) -> None: ...

    def keep(self, slot: int, failure: object, task: str, *, in_reset: bool) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def played(
    seed: int,
    clock: Callable[[], float] = lambda: 0.0,
    *,
    threaded: bool = False,
    least: int = 0,
    due: float = 0.0,
    policy: NumberPolicy | None = None,
    canary: NDArray[np.bool_] | None = None,
) -> tuple[NumberedPool, Post]:
    post = Post(seed, due)
    post.ahead = (0,) if canary is None else (0, AHEAD)
    return play(seed, clock, [post], threaded=threaded, least=least, policy=policy, canary=canary)[0], post


def play(
    seed: int,
    clock: Callable[[], float],
    posts: list[Post],
    *,
    threaded: bool = False,
    least: int = 0,
    steps: int = STEPS,
    metrics: ActorMetrics | None = None,
    policy: NumberPolicy | None = None,
    kind: type[NumberedPool] = NumberedPool,
    until_blocked: bool = False,
    canary: NDArray[np.bool_] | None = None,
    deaths: "Deaths | None" = None,
) -> tuple[NumberedPool, ActorMetrics]:
    """Acts with one lane per post until so many steps are taken, or nothing can happen, and drains."""
    policy = policy or NumberPolicy()
    schema = policy.frozen_encoder.schema(SCHEMA) if policy.frozen_encoder else SCHEMA
    torch.manual_seed(seed)
    pool, metrics = kind(seed), metrics or ActorMetrics(CollectorRegistry(), "actor", len(posts))
    lanes = [
        ShardConnection(name="", permits=post, uploader=post)  # type: ignore[arg-type]  # A stand-in with the methods that are called.
        for post in posts
    ]
    inference = PolicyRunner(
        policy, SCHEMA, SLOTS, largest=3, device=torch.device("cpu"), seed=seed, greedy=False, canary=canary
    )
    for is_canary in (False, True):
        inference.swap(weights_of(1), 1, canary=is_canary)
    timeout_s = 0.001 if least else 0.0
    batcher = InferenceBatcher(inference, lambda: pool.obs, least=least, timeout_s=timeout_s, threaded=threaded)
    lanes_ = StreamRouter("actor", SLOTS, lanes, fragments_per_chunk=PER_CHUNK)
    actor = Actor(
        pool=pool,  # type: ignore[arg-type]  # Likewise.
        inference=inference,
        batcher=batcher,
        recorder=Recorder(schema, SLOTS, 6),
        episodes=RunningEpisodes(SLOTS, 0.9, canary=canary),
        router=lanes_,
        cuts=FreshnessCuts(lanes_, SLOTS, least_steps=LEAST_STEPS, fragment_length=6, chunk_steps=12, clock=clock),
        follower=posts[0],  # type: ignore[arg-type]
        metrics=metrics,
        rollout=RolloutConfig(
            fragment_length=6,
            worker_config=WorkerConfig(num_envs=SLOTS, batch_size=3),
            replay_buffer_config=ReplayBufferConfig(fragments_per_chunk=PER_CHUNK),
        ),
        deaths=deaths,  # type: ignore[arg-type]
        batch_size=SLOTS if issubclass(kind, BatchedPool) else 1,
        clock=clock,
    )
    thread = threading.Thread(target=batcher.run)
    if threaded:
        thread.start()
    actor.start()
    turns = 0
    while pool.steps < steps and not (until_blocked and actor.is_blocked()):
        actor.turn(0.0)
        turns += 1
        assert threaded or turns < MAX_TURNS, "the slots wait for each other"
    actor.drain()
    if threaded:
        thread.join()
    return pool, metrics


def ticking() -> Callable[[], float]:
    """A clock on which everything takes a while."""
    ticks = iter(range(10**9))
    return lambda: float(next(ticks))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_frozen", [False, True], ids=["observations", "outputs of a frozen encoder"])
@pytest.mark.parametrize("due", [0.0, 0.1, 0.9])
@pytest.mark.parametrize(
    ("threaded", "least"), [(False, 0), (False, 2), (True, 0)], ids=["in order", "batch by batch", "batches in flight"]
)
def test_every_good_step_is_stored_once_in_order_with_its_own_next_value_and_version(
    seed: int, due: float, threaded: bool, least: int, is_frozen: bool
) -> None:
    policy = frozen_policy() if is_frozen else None
    pool, post = played(seed, ticking(), threaded=threaded, least=least, due=due, policy=policy)
    assert len(post.used) > 10
    assert post.used == sorted(set(post.used))
    assert CAPACITY <= post.most_waiting <= CAPACITY + SLOTS
    assert sum(len(queued.fragment) for queued in post.fragments) == pool.steps
    for queued, following in audited_pairs(post):
        audit_border(queued, following)


@pytest.mark.parametrize(
    ("threaded", "least"), [(False, 0), (False, 2), (True, 0)], ids=["in order", "batch by batch", "batches in flight"]
)
def test_canary_slots_act_by_the_newest_version_and_the_others_by_the_promoted_one(threaded: bool, least: int) -> None:
    canary = np.arange(SLOTS) % 2 == 0
    _, post = played(0, ticking(), threaded=threaded, least=least, canary=canary)
    for queued, following in audited_pairs(post):
        audit_border(queued, following)
    for queued in post.fragments:
        newer = queued.fragment.policy_version[queued.fragment.policy_version > 1]  # All begin with the first.
        assert np.all((newer > AHEAD) == canary[slot_of(queued.header.name.stream)])
    assert len(post.used) > 10
    assert {bool(record.canary) for record in post.episodes} == {False, True}
    assert all(record.canary == canary[slot_of(record.stream)] for record in post.episodes)


@pytest.mark.parametrize("kind", [BatchedPool, ResettingPool])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("least", [0, 2], ids=["in order", "batch by batch"])
def test_batch_goes_on_though_some_slots_are_blocked_and_stores_only_whole_transitions(
    seed: int, least: int, kind: type[BatchedPool]
) -> None:
    post = Scarce(seed)
    pool, _ = play(seed, lambda: 0.0, [post], least=least, steps=200, kind=kind)
    stored = sum(len(queued.fragment) for queued in post.fragments)
    assert pool.steps / 3 < stored <= pool.steps
    assert stored < pool.steps or kind is ResettingPool, "some steps are not recorded"
    assert post.whole > 2 * SLOTS
    for queued, following in audited_pairs(post):
        assert numbers(following.fragment.obs)[0] > numbers(queued.fragment.obs)[-1]


@pytest.mark.parametrize("kind", [NumberedPool, BatchedPool, ResettingPool])
@pytest.mark.parametrize("seed", range(10))
def test_actor_is_blocked_once_its_last_grant_is_used_whatever_waits_for_whom(
    seed: int, kind: type[NumberedPool]
) -> None:
    post = Spent(seed)
    play(seed, lambda: 0.0, [post], steps=10**9, kind=kind, until_blocked=True)
    assert len(post.granted) == SLOTS


def numbers(stored: Tree) -> NDArray[np.float32]:
    """The stored numbers, [T]: as they were seen, or as a frozen encoder returned them."""
    seen: NDArray[np.float32] = stored[KEY]["00"] if isinstance(stored, dict) else stored
    return seen[:, 0]


def audited_pairs(post: Post) -> Iterator[tuple[Sent, Sent]]:
    """Checks the fragments of each stream; yields each with the one that follows it."""
    for slot in range(SLOTS):
        sent = [queued for queued in post.fragments if queued.header.name.stream == f"actor-{slot}"]
        assert [queued.header.name.sequence for queued in sent] == list(range(len(sent)))
        for queued in sent:
            audit(queued)
        yield from pairwise(sent)


def audit(queued: Sent) -> None:
    """Checks a fragment against what the numbered observations say."""
    fragment = queued.fragment
    number = numbers(fragment.obs)
    after = np.append(number[1:], np.nan)
    cuts = dict(zip(fragment.cut_index.tolist(), numbers(fragment.cut_obs).tolist(), strict=True))
    for t in range(len(fragment)):
        done = fragment.terminated[t] or fragment.truncated[t]
        follows = cuts[t] if t in cuts else after[t]
        assert fragment.behaviour_value[t] == number[t]
        assert fragment.action[t] == fragment.policy_version[t] % ACTIONS
        assert fragment.next_value[t] == (0.0 if fragment.terminated[t] else follows)
        assert follows == number[t] + 1 or fragment.terminated[t]
        assert fragment.reward[t] == number[t] + 1
        assert (t in cuts) == ((t == len(fragment) - 1 or fragment.truncated[t]) and not fragment.terminated[t])
        assert not (fragment.terminated[t] and fragment.truncated[t])
        assert fragment.truncated[t] or not fragment.crash[t]
        if t + 1 < len(fragment):
            assert fragment.first[t + 1] == done
            assert number[t + 1] > number[t]


def audit_border(queued: Sent, following: Sent) -> None:
    """Checks that the stored state is the one before the fragment's first step."""
    before, after = queued.fragment, following.fragment
    if after.first[0]:
        assert after.recurrent_state["count"].tolist() == [0.0]
    else:
        starts = np.flatnonzero(before.first)
        count = len(before) - starts[-1] if len(starts) else len(before) + before.recurrent_state["count"][0]
        assert after.recurrent_state["count"].tolist() == [float(count)]
        assert numbers(after.obs)[0] == numbers(before.obs)[-1] + 1


@pytest.mark.parametrize("seed", range(2))
def test_every_stream_stays_on_the_shard_of_its_birth_and_loses_nothing(seed: int) -> None:
    posts = [Post(seed + lane) for lane in range(3)]
    pool, metrics = play(seed, ticking(), posts, steps=2000)
    sent = [queued for post in posts for queued in post.fragments]
    assert sum(len(queued.fragment) for queued in sent) == pool.steps
    assert {queued.header.name.stream for queued in sent} == {f"actor-{slot}" for slot in range(SLOTS)}
    for slot in range(SLOTS):
        stream = [queued for queued in sent if queued.header.name.stream == f"actor-{slot}"]
        assert [queued.header.name.sequence for queued in stream] == list(range(len(stream)))
        for queued in stream:
            audit(queued)
        for queued, following in pairwise(stream):
            audit_border(queued, following)
    for lane, post in enumerate(posts):
        assert metrics.progress(lane).env_steps == sum(len(queued.fragment) for queued in post.fragments)
        assert all(shard_of(queued.header.name.stream) == lane for queued in post.fragments)
        assert all(shard_of(record.stream) == lane for record in post.episodes)


def shard_of(stream: str) -> int:
    return int(shard_numbers(0, SLOTS, 3)[int(stream.removeprefix("actor-"))])


@pytest.mark.parametrize("seed", range(3))
def test_episode_records_tell_failures_from_endings_and_lose_no_reward(seed: int) -> None:
    _, post = played(seed)
    per_slot: dict[str, list[int]] = defaultdict(list)
    for record in post.episodes:
        per_slot[record.stream].append(record.episode)
        assert bool(record.failure) == (not record.terminated and not record.truncated)
    assert all(numbers == list(range(len(numbers))) for numbers in per_slot.values())
    stored = sum(float(queued.fragment.reward.sum()) for queued in post.fragments)
    assert sum(record.episode_return for record in post.episodes) <= stored
    assert any(record.failure for record in post.episodes)


@pytest.mark.parametrize("seed", range(3))
def test_a_drain_closes_every_stream_that_has_an_open_fragment(seed: int) -> None:
    _, post = played(seed)
    last: dict[str, Sent] = {queued.header.name.stream: queued for queued in post.fragments}
    assert last
    assert all(queued.header.closes_chunk or len(queued.fragment) == 6 for queued in last.values())


def test_a_drain_waits_until_deaths_are_written() -> None:
    deaths = Deaths()
    play(0, lambda: 0.0, [Post(0)], steps=20, deaths=deaths)
    assert deaths.is_closed


def is_last(post: Post, queued: Sent) -> bool:
    name = queued.header.name
    others = (other.header.name for other in post.fragments)
    return not any(other.stream == name.stream and other.sequence > name.sequence for other in others)


def lengths(post: Post) -> NDArray[np.intp]:
    return np.array([len(queued.fragment) for queued in post.fragments if not is_last(post, queued)])


def test_fragments_are_full_unless_they_are_due() -> None:
    assert set(lengths(played(0)[1])) == {6}
    assert lengths(played(0)[1]).min() == 6
    short = [queued for queued in played(0, ticking(), due=0.5)[1].fragments if len(queued.fragment) < LEAST_STEPS]
    assert short
    assert all(queued.fragment.terminated[-1] or queued.fragment.truncated[-1] for queued in short[:-SLOTS])


def test_actor_loop_accounts_for_the_time_of_every_slot_in_every_turn() -> None:
    ticks = iter(range(10**9))
    metrics = ActorMetrics(CollectorRegistry(), "actor", 2)
    metrics.slot_time = SlotTimer(lambda: float(next(ticks)))
    play(0, ticking(), [Post(1), Post(2)], metrics=metrics)
    spent = metrics.slot_time.seconds()
    assert all(spent[kind] > 0 for kind in ("environment", "inference", "grant", "room"))
    assert sum(spent.values()) % SLOTS == 0
