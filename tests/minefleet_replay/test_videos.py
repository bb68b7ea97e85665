"""Videos in the log of episodes. `make_world` and `make_server` are in conftest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.fuzzing import mutated
from tests.minefleet_replay.conftest import video_of
from tests.replay_process import ReplayProcess, append
from tests.role_process import small_disk

from minefleet.errors import CorruptError, RejectedError
from minefleet.videos import MAX_VIDEO_BYTES
from minefleet_replay.replay import Page
from minefleet_replay.videos import VIDEOS, VIDEOS_HELD, _checked, _pack

Worlds = Callable[..., Any]


def page_of(world: Any, cursor: int = 0, limit: int = 999) -> Page:
    page: Page = world.replay.read_episodes(world.learner, cursor, limit)
    return page


def shown(world: Any) -> list[tuple[str, int]]:
    return [(video.stream, video.episode) for video in page_of(world).videos]


def test_videos_come_in_the_log_of_episodes_past_the_cursor(world: Any) -> None:
    world.report(("s", 0))
    world.show("s", 0)
    world.report(("s", 1))
    page = page_of(world)
    assert page.videos == [video_of("s", 0)]
    assert [record.episode for record in page.records] == [0, 1]
    assert page.next_cursor == 3
    assert page_of(world, 2).videos == []


def test_a_page_ends_at_its_limit_whatever_it_holds(world: Any) -> None:
    world.show("s", 0)
    world.report(("s", 0), ("s", 1))
    world.show("s", 1)
    cursor, seen = 0, list[Any]()
    while (page := page_of(world, cursor, 1)).next_cursor > cursor:
        seen += [*page.records, *page.videos]
        cursor = page.next_cursor
    assert [(type(one).__name__, one.episode) for one in seen] == [
        ("Video", 0),
        ("EpisodeRecord", 0),
        ("EpisodeRecord", 1),
        ("Video", 1),
    ]


def test_large_videos_do_not_share_a_page(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**32)
    for episode in range(2):
        world.show("s", episode, bytes(MAX_VIDEO_BYTES))
    first = page_of(world)
    assert [video.episode for video in first.videos] == [0]
    assert [video.episode for video in page_of(world, first.next_cursor).videos] == [1]


def test_a_video_is_stored_once_by_stream_and_episode(world: Any) -> None:
    for _ in range(2):
        world.show("s", 0)
        world.show("s", 0, b"other bytes")
        world.crash()
    assert page_of(world).videos == [video_of("s", 0)]


def test_videos_survive_kill_9_with_the_records_around_them(world: Any) -> None:
    world.show("s", 0)
    world.report(("s", 0))
    world.crash()
    world.show("t", 7)
    world.crash()
    assert shown(world) == [("s", 0), ("t", 7)]
    assert page_of(world).next_cursor == 3
    assert world.faults() == []


def test_the_oldest_videos_leave_when_there_are_too_many(world: Any) -> None:
    for episode in range(VIDEOS_HELD + 3):
        world.show("s", episode)
    assert shown(world) == [("s", episode) for episode in range(3, VIDEOS_HELD + 3)]
    assert len(list((world.directory / VIDEOS).iterdir())) == world.figure("videos") == VIDEOS_HELD


def test_the_bytes_of_videos_are_bounded_and_one_that_never_fits_is_dropped(make_world: Worlds) -> None:
    world = make_world(max_bytes=2**24)
    bound_bytes = world.limits.budget.video_bytes
    for episode in range(9):
        world.show("s", episode, bytes(bound_bytes // 4))
        assert sum(path.stat().st_size for path in (world.directory / VIDEOS).iterdir()) <= bound_bytes
    world.show("t", 0, bytes(bound_bytes + 1))
    assert shown(world) == [("s", 6), ("s", 7), ("s", 8)]
    world.crash()
    assert shown(world) == [("s", 6), ("s", 7), ("s", 8)]


def test_videos_leave_with_the_records_that_are_as_old(make_world: Worlds) -> None:
    world = make_world(episodes_kept=3)
    world.show("s", 0)
    world.report(*(("s", number) for number in range(5)))
    world.replay.tick()
    assert shown(world) == []
    assert list((world.directory / VIDEOS).iterdir()) == []


def test_a_damaged_video_is_never_served_and_costs_no_other(world: Any) -> None:
    for episode in range(3):
        world.show("s", episode)
    damaged, missing = sorted((world.directory / VIDEOS).iterdir())[:2]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    missing.unlink()
    assert shown(world) == [("s", 2)]
    world.restart()
    assert shown(world) == [("s", 2)]


def test_what_a_crash_left_beside_the_videos_is_removed(world: Any) -> None:
    world.show("s", 0)
    (world.directory / VIDEOS / ".laid-aside-x").write_bytes(b"half")
    (world.directory / VIDEOS / "00000099.video").write_bytes(b"without a row")
    world.restart()
    assert [path.name for path in (world.directory / VIDEOS).iterdir()] == ["00000000.video"]


WRONG: dict[str, dict[str, Any]] = {
    "no bytes": {"data": b""},
    "too many bytes": {"data": bytes(MAX_VIDEO_BYTES + 1)},
    "another format": {"format": "gif"},
    "no stream": {"stream": ""},
    "a huge number": {"episode": 2**64 - 1},
    "a long wish": {"wish": "w" * 201},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_video_is_refused_and_nothing_of_it_is_stored(make_server: Callable[..., Any], wrong: str) -> None:
    server, video = make_server(), video_of("s", 0)
    for name, value in WRONG[wrong].items():
        setattr(video, name, value)
    with server.serve(), server.client() as client:
        with pytest.raises(RejectedError):
            client.append(video=video)
        client.append(video=video_of("t", 0))
        assert client.read_episodes(0, 9).videos == [video_of("t", 0)]


def test_a_video_as_large_as_may_be_travels_to_replay_and_back(make_server: Callable[..., Any]) -> None:
    server, video = make_server(max_bytes=2**30), video_of("s", 0, bytes(MAX_VIDEO_BYTES))
    with server.serve(), server.client() as client:
        client.append([(server.header("s", 0), b"payload")], video=video)
        assert client.read_episodes(0, 9).videos == [video]
        assert server.count("appended_videos_total", outcome="stored") == 1


def test_an_acked_video_survives_kill_9_of_the_process_and_a_full_disk_costs_the_video_alone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "replay", 32 * 2**20) as disk:
        replay = ReplayProcess(tmp_path, max_bytes=2**28)
        with replay.client() as client:
            with replay.running() as process:
                client.append(video=video_of("s", 0))
                process.kill()
                process.wait()
            with replay.running():
                assert client.read_episodes(0, 9).videos == [video_of("s", 0)]
                (disk / "ballast").write_bytes(bytes(16 * 2**20))
                client.append(video=video_of("t", 0, bytes(3 * 2**20)))
                assert client.read_episodes(0, 9).videos == [video_of("s", 0)]
                assert replay.sample("minefleet_replay_appended_videos_total", outcome="dropped") == 1
                assert append(replay, client, "s", 0) == "stored"


@given(changed=mutated(_pack(video_of("s", 0))))
def test_a_file_of_which_any_bytes_changed_is_found_out(changed: bytes) -> None:
    if changed != _pack(video_of("s", 0)):
        with pytest.raises(CorruptError):
            _checked(changed)
