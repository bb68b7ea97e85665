"""The camera beside a loop that this test plays."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from tests.films import pictures

from minefleet.v1 import episode_pb2
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.video_recorder import MAX_QUEUED_SHOTS, Camera

SLOTS = 4
INTERVAL = 5


class Set:
    """A camera, what it films, and where its videos and records go."""

    def __init__(self, directory: Path, shape: Any = (16, 16, 3)) -> None:
        self.directory = directory
        self.obs = np.zeros((SLOTS, *shape), np.uint8)
        self.filmed: set[int] = set()
        self.is_named = True
        self.records: Queue[tuple[int, episode_pb2.EpisodeRecord]] = Queue()
        self.registry = CollectorRegistry()
        self.episodes = RunningEpisodes(SLOTS, 0.9)
        self.camera = Camera(
            lens=lambda slot: self.obs[slot],
            episodes=self.episodes,
            film=lambda slot, on: self.filmed.add(slot) if on else self.filmed.discard(slot),
            is_named=lambda: self.is_named,
            report=self.report,
            directory=directory,
            fps=10,
            interval=INTERVAL,
            metrics=ActorMetrics(self.registry, "actor"),
        )

    def report(self, slot: int, record: episode_pb2.EpisodeRecord) -> None:
        self.records.put((slot, record))

    @contextmanager
    def rolling(self) -> Iterator[None]:
        thread = threading.Thread(target=self.camera.run)
        thread.start()
        try:
            yield
        finally:
            self.camera.close()
            thread.join()

    def step(self, steps: int, version: int = 7) -> None:
        """All slots see something, act, and are paid 0.5."""
        slots = np.arange(SLOTS)
        for _ in range(steps):
            self.obs += 16
            self.camera.film(slots, np.full(SLOTS, 2.0, np.float32), np.full(SLOTS, version, np.uint32))
            reward = np.full(SLOTS, 0.5, np.float32)
            self.episodes.add(slots, reward, reward, np.ones(SLOTS, np.uint32))

    def play(self, slot: int, steps: int, version: int = 7, failure: str = "") -> bool:
        """One episode of a slot, and of the others; says whether the camera reports that of the slot."""
        self.camera.begin(slot, version)
        self.step(steps, version)
        ended = [
            self.episodes.end(each, f"s-{each}", version=version, task="dig", failure=failure) for each in range(SLOTS)
        ]
        return self.camera.end(slot, ended[slot])

    def reported(self) -> episode_pb2.EpisodeRecord:
        """The next record that the camera reports."""
        slot, record = self.records.get(timeout=30)
        assert record.stream == f"s-{slot}"
        return record

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"minefleet_actor_{name}_total", labels) or 0.0


@pytest.fixture
def stage(tmp_path: Path) -> Set:
    return Set(tmp_path / "videos")


def test_an_episode_is_filmed_whole_when_the_version_passes_a_multiple_and_its_record_names_the_file(
    stage: Set,
) -> None:
    with stage.rolling():
        assert not stage.play(0, 3, version=4)
        assert stage.play(2, 5)
        record = stage.reported()
        assert not stage.play(1, 3, version=9)
        assert stage.play(1, 3, version=21)
        assert stage.reported().policy_version == 21
    (path,) = stage.directory.glob("version-7-*")
    assert path.name == "version-7-s-2-1.mp4"
    assert (record.video.host, record.video.path) == (socket.gethostname(), str(path))
    assert (record.episode_return, record.length) == (2.5, 5)
    assert [number for number, _ in pictures(path)] == [0, 1, 2, 3, 4, 5, 15]
    assert (stage.filmed, stage.count("videos", outcome="written")) == (set(), 2)


def test_video_recorder_films_only_and_at_once_when_its_actor_is_named(stage: Set) -> None:
    stage.is_named = False
    with stage.rolling():
        assert not stage.play(0, 3, version=12)
        stage.is_named = True
        assert stage.play(0, 3, version=13)
        assert stage.reported().video.path


def test_episode_that_ends_while_the_one_before_is_reported_is_filmed_too(tmp_path: Path) -> None:
    class Hurried(Set):
        def report(self, slot: int, record: episode_pb2.EpisodeRecord) -> None:
            super().report(slot, record)
            if record.policy_version < 20:
                self.play(slot, 3, version=21)

    stage = Hurried(tmp_path / "videos")
    with stage.rolling():
        stage.play(0, 3)
        for version in (7, 21):
            record = stage.reported()
            assert (record.policy_version, bool(record.video.path)) == (version, True)


def test_video_recorder_renders_the_filmed_slot_only_and_while_it_is_filmed(stage: Set) -> None:
    stage.camera.begin(1, 7)
    stage.camera.begin(2, 7)
    assert stage.filmed == {1}
    assert not stage.camera.end(2, episode_pb2.EpisodeRecord(stream="s-2"))
    assert stage.filmed == {1}
    assert stage.camera.end(1, episode_pb2.EpisodeRecord(stream="s-1"))
    assert stage.filmed == set()


def test_video_recorder_discards_a_failed_episode_and_films_the_next(stage: Set) -> None:
    with stage.rolling():
        assert not stage.play(0, 30, failure="hang")
        assert stage.play(3, 4)
        assert stage.reported().stream == "s-3"
    (path,) = stage.directory.iterdir()
    assert len(list(pictures(path))) == 6


def test_video_recorder_that_is_stopped_leaves_no_unfinished_video(stage: Set) -> None:
    with stage.rolling():
        stage.camera.begin(0, 7)
        stage.step(70)
        stage.camera.stop()
        assert not stage.play(1, 3)
    assert stage.records.empty()
    assert list(stage.directory.iterdir()) == []


def test_a_video_that_cannot_be_written_costs_nothing_but_itself_and_the_next_one_is_tried(stage: Set) -> None:
    stage.directory.write_text("no directory")
    with stage.rolling():
        assert stage.play(0, 40)
        assert not stage.reported().HasField("video")
        stage.directory.unlink()
        assert stage.play(0, 40, version=11)
        assert stage.reported().video.path.endswith("version-11-s-0-1.mp4")
    assert stage.count("videos", outcome="lost") == 1


def test_video_recorder_that_gives_up_reports_the_record_once_without_its_video(stage: Set) -> None:
    assert stage.play(0, 3)
    stage.camera.give_up()
    assert not stage.reported().HasField("video")
    with stage.rolling():
        pass
    assert stage.records.empty()


def test_video_recorder_drops_frames_instead_of_waiting_for_the_encoder(stage: Set) -> None:
    stage.camera.begin(0, 7)
    stage.step(100_000)
    assert stage.count("video_frames_dropped") == 100_000 - MAX_QUEUED_SHOTS


def test_large_frames_take_no_more_memory_than_small_ones_do(tmp_path: Path) -> None:
    stage = Set(tmp_path / "videos", shape=(1080, 1920, 3))
    stage.camera.begin(0, 7)
    stage.step(30)
    left_out = int(stage.count("video_frames_dropped"))
    assert (30 - left_out) * stage.obs[0].nbytes < 70 * 2**20
