"""The camera beside a loop that this test plays; its claims go to a real parameters server where it matters."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from tests.minefleet_parameters.conftest import Parameters, running

from minefleet.errors import NotFoundError, UnavailableError
from minefleet.parameters import Wish
from minefleet.v1 import episode_pb2
from minefleet_actor.metrics import ActorMetrics
from minefleet_actor.video.camera import LONGEST_TAPE, Camera, Claims, State
from minefleet_actor.video.mp4 import pictures
from minefleet_parameters.wishes import CLAIM_TIMEOUT_S

SLOTS = 4
WISH = Wish("video-3")


class Book:
    """Claims as parameters answers them, for one actor."""

    def __init__(self) -> None:
        self.others: set[str] = set()
        self.claimed: list[str] = []
        self.done: Queue[str] = Queue()
        self.away = False

    def claim(self, wish: str, *, done: bool = False) -> bool:
        if self.away:
            raise UnavailableError("parameters is away")
        if wish == "unknown":
            raise NotFoundError("nobody wished that")
        self.claimed.append(wish)
        if done:
            self.done.put(wish)
        return wish not in self.others


class Set:
    """A camera, what it films, and where its videos go."""

    def __init__(self, directory: Path, claims: Claims, *, takes: bool = True, shape: Any = (16, 16, 3)) -> None:
        self.directory = directory
        self.obs = np.zeros((SLOTS, *shape), np.uint8)
        self.filmed: set[int] = set()
        self.videos: Queue[episode_pb2.Video] = Queue()
        self.registry = CollectorRegistry()
        self.takes = takes
        self.camera = Camera(
            lens=lambda slot: self.obs[slot],
            film=lambda slot, on: self.filmed.add(slot) if on else self.filmed.discard(slot),
            claims=claims,
            show=self.show,
            directory=directory,
            fps=10,
            metrics=ActorMetrics(self.registry, "actor"),
        )

    def show(self, video: episode_pb2.Video, told: Callable[[bool], None]) -> None:
        self.videos.put(video)
        told(self.takes)

    @contextmanager
    def rolling(self) -> Iterator[None]:
        thread = threading.Thread(target=self.camera.run)
        thread.start()
        try:
            yield
        finally:
            self.camera.close()
            thread.join()

    def wait_for(self, state: State) -> None:
        """Until the camera's thread has come there."""
        with self.camera._changed:
            assert self.camera._changed.wait_for(lambda: self.camera._state is state, 30)

    def step(self, steps: int) -> None:
        """All slots see something, act, and are paid 0.5."""
        slots = np.arange(SLOTS)
        for _ in range(steps):
            self.obs += 16
            self.camera.look(slots, np.full(SLOTS, 2.0, np.float32), 7)
            self.camera.step(slots, np.full(SLOTS, 0.5, np.float32))

    def play(self, slot: int, steps: int, failure: str = "") -> None:
        """One episode of a slot."""
        self.camera.begin(slot)
        self.step(steps)
        record = episode_pb2.EpisodeRecord(
            stream=f"s-{slot}", length=steps, policy_version=7, episode_return=steps / 2, task="dig", failure=failure
        )
        self.camera.end(slot, record)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"minefleet_actor_{name}_total", labels) or 0.0


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def stage(tmp_path: Path, book: Book) -> Set:
    return Set(tmp_path / "videos", book)


def test_the_episode_that_begins_next_is_filmed_whole_and_reported_once_it_is_stored(stage: Set, book: Book) -> None:
    with stage.rolling():
        stage.play(0, 3)
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.step(3)
        stage.play(2, 5)
        video = stage.videos.get(timeout=30)
        assert book.done.get(timeout=30) == WISH.name
        stage.wait_for(State.IDLE)
    assert (video.wish, video.stream, video.policy_version, video.episode_return) == (WISH.name, "s-2", 7, 2.5)
    (path,) = stage.directory.iterdir()
    assert path.name == "version-7-s-2-0.mp4"
    assert path.read_bytes() == video.data
    assert [number for number, _ in pictures(path)] == [0, 1, 2, 3, 4, 5, 15]
    assert (stage.filmed, stage.count("videos", outcome="stored")) == (set(), 1)


def test_only_the_filmed_slot_renders_and_only_while_it_is_filmed(stage: Set) -> None:
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.camera.begin(1)
        stage.camera.begin(2)
        assert stage.filmed == {1}
        stage.camera.end(2, episode_pb2.EpisodeRecord(stream="s-2"))
        assert stage.filmed == {1}


def test_an_episode_that_fails_is_thrown_away_and_the_next_one_filmed(stage: Set, book: Book) -> None:
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.play(0, 30, failure="hang")
        stage.play(3, 4)
        video = stage.videos.get(timeout=30)
        book.done.get(timeout=30)
    assert (video.stream, stage.videos.empty()) == ("s-3", True)
    assert len(list(stage.directory.iterdir())) == 1
    assert len(list(pictures(next(stage.directory.iterdir())))) == 6


def test_a_drain_gives_up_what_is_not_whole_and_leaves_the_wish_to_others(stage: Set, book: Book) -> None:
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.camera.begin(0)
        stage.step(70)
        stage.camera.stop()
        stage.camera.settle(30)
        stage.play(1, 3)
    assert stage.videos.empty() and book.done.empty()
    assert list(stage.directory.iterdir()) == []


def test_a_video_that_cannot_be_written_costs_the_actor_nothing_and_the_next_wish_is_tried(
    stage: Set, book: Book
) -> None:
    stage.directory.write_text("no directory")
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.play(0, 40)
        stage.wait_for(State.IDLE)
        stage.directory.unlink()
        stage.camera.hear([WISH, Wish("video-4")])
        stage.wait_for(State.WAITING)
        stage.play(0, 40)
        assert stage.videos.get(timeout=30).wish == "video-4"
        assert book.done.get(timeout=30) == "video-4"
    assert stage.count("videos", outcome="lost") == 1


def test_what_replay_refuses_is_not_reported_done(tmp_path: Path, book: Book) -> None:
    stage = Set(tmp_path / "videos", book, takes=False)
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.play(0, 3)
        stage.wait_for(State.IDLE)
    assert book.done.empty()
    assert stage.count("videos", outcome="lost") == 1


def test_a_wish_that_another_has_taken_over_is_not_shown_twice(stage: Set, book: Book) -> None:
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
        stage.camera.begin(0)
        book.others.add(WISH.name)
        stage.step(3)
        stage.camera.end(0, episode_pb2.EpisodeRecord(stream="s", length=3, policy_version=7))
        stage.wait_for(State.IDLE)
    assert stage.videos.empty()
    assert list(stage.directory.iterdir()) == []


def test_wishes_that_cannot_be_claimed_are_left_alone_and_the_newest_is_served_first(stage: Set, book: Book) -> None:
    book.others.add("theirs")
    with stage.rolling():
        stage.camera.hear([Wish("old"), Wish("dance", kind="dance"), Wish("new"), Wish("theirs"), Wish("unknown")])
        stage.wait_for(State.WAITING)
    assert book.claimed == ["theirs", "new"]


def test_the_loop_never_waits_for_the_encoder_and_frames_are_left_out_evenly(stage: Set) -> None:
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
    stage.camera.begin(0)
    stage.step(100_000)
    shots: list[Any] = list(stage.camera._tape)
    steps = [shot.caption.step for shot in shots]
    gaps = np.diff(steps[: LONGEST_TAPE // 2 + 1])
    assert len(shots) <= LONGEST_TAPE
    assert (gaps == 1).all()
    assert (np.diff(np.diff(steps)) >= 0).all()
    assert stage.count("video_frames_left_out") == 100_000 - len(shots)


def test_large_frames_take_no_more_memory_than_small_ones_do(tmp_path: Path, book: Book) -> None:
    stage = Set(tmp_path / "videos", book, shape=(1080, 1920, 3))
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.wait_for(State.WAITING)
    stage.camera.begin(0)
    stage.step(30)
    assert sum(shot.frame.nbytes for shot in list[Any](stage.camera._tape)) < 70 * 2**20


def test_a_claim_waits_for_parameters_that_is_away_and_acting_goes_on(stage: Set, book: Book) -> None:
    book.away = True
    with stage.rolling():
        stage.camera.hear([WISH])
        stage.play(0, 3)
    assert book.claimed == [] and stage.videos.empty()


@pytest.fixture
def parameters(tmp_path: Path) -> Iterator[Parameters]:
    with running(tmp_path / "parameters") as parameters:
        publish(parameters)
        yield parameters


def publish(parameters: Parameters) -> None:
    """A learner begins, or resumes, and wishes; the second time, for what is known."""
    with closing(parameters.client()) as learner:
        learner.open_epoch("run")
        learner.publish({"layer": np.ones(1, np.float32)}, iteration=1, wishes=[WISH])


def test_two_actors_and_one_wish_make_one_video(tmp_path: Path, parameters: Parameters) -> None:
    with closing(parameters.client(watcher="a")) as one, closing(parameters.client(watcher="b")) as two:
        first, second = Set(tmp_path / "a", one), Set(tmp_path / "b", two)
        with first.rolling(), second.rolling():
            first.camera.hear([WISH])
            first.wait_for(State.WAITING)
            second.camera.hear([WISH])
            for stage in (second, first):
                stage.play(0, 3)
            assert first.videos.get(timeout=30).wish == WISH.name
            first.wait_for(State.IDLE)
            assert next(one.watch()).wishes == ()
        assert second.videos.empty()


def test_the_wish_of_an_actor_that_died_while_filming_is_filmed_by_another(
    tmp_path: Path, parameters: Parameters
) -> None:
    with closing(parameters.client(watcher="dead")) as dead, closing(parameters.client(watcher="b")) as living:
        assert dead.claim(WISH.name)
        assert next(living.watch()).wishes == ()
        parameters.clock.now_s = CLAIM_TIMEOUT_S
        publish(parameters)
        stage = Set(tmp_path / "b", living)
        with stage.rolling():
            stage.camera.hear(next(living.watch()).wishes)
            stage.wait_for(State.WAITING)
            stage.play(0, 3)
            assert stage.videos.get(timeout=30).wish == WISH.name
            stage.wait_for(State.IDLE)
