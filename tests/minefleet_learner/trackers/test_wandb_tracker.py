"""wandb's own files hold the run; without a key or a server it is logged offline."""

import http.server
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.minefleet_learner.trackers.conftest import MakeTracked
from tests.role_process import wait_for
from tests.wandb_file import records

from minefleet_learner.trackers.wandb_tracker import WandbTracker, unreachable, wandb_arguments


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def logged(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's record and the rows, as wandb wrote them, of all parts of one run."""
    paths = sorted(directory.glob("**/wandb/offline-run-*/run-run-id.wandb"))
    wait_for(lambda: all(any(record.HasField("exit") for record in records(path)) for path in paths))
    found = [record for path in paths for record in records(path)]
    (run_id,) = {record.run.run_id for record in found if record.HasField("run")}
    config = next(record.run.config for record in found if record.HasField("run"))
    rows = [record.history.item for record in found if record.HasField("history")]
    return (
        {"id": run_id, **{item.key: json.loads(item.value_json) for item in config.update}},
        [{"/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows],
    )


@pytest.mark.usefixtures("offline")
def test_wandb_offline_holds_the_curve_and_a_resumed_run_continues_the_same_run(
    tmp_path: Path, make_tracked: MakeTracked, caplog: pytest.LogCaptureFixture
) -> None:
    for first in (1, 3):
        tracker = WandbTracker()  # A folder of wandb's is named by the second, so each has a place of its own.
        (tmp_path / str(first)).mkdir()
        tracker.start(make_tracked(directory=tmp_path / str(first)))
        for iteration in (first, first + 1):
            tracker.log({"episode/return_mean": 10.0 * iteration, "iteration": iteration}, 640 * iteration)
        tracker.close()
    told, rows = logged(tmp_path)
    assert told["id"] == "run-id"
    assert told["train_config"]["discount"] == make_tracked().config["train_config"]["discount"]
    assert [row["env_steps"] for row in rows] == [640, 1280, 1920, 2560]
    assert [row["episode/return_mean"] for row in rows] == [10.0, 20.0, 30.0, 40.0]
    files = tmp_path / "3" / "wandb" / "offline-run-*-run-id"
    assert caplog.messages[-1] == f"wandb logs offline; to send it afterwards: wandb sync {files}"


@pytest.mark.usefixtures("offline")
def test_wandb_holds_the_video_of_an_episode_at_its_step(tmp_path: Path, make_tracked: MakeTracked) -> None:
    film = tmp_path / "version-3-a-4.mp4"
    film.write_bytes(b"video")
    tracker = WandbTracker()
    tracker.start(make_tracked())
    tracker.log_video("video/dig", film, "version 3, return 2.00 dig", 640)
    tracker.close()
    (path,) = tmp_path.glob("wandb/offline-run-*-run-id/files/media/videos/**/*.mp4")
    assert path.read_bytes() == b"video"
    (row,) = logged(tmp_path)[1]
    assert row["env_steps"] == 640
    assert row["video/dig/caption"] == "version 3, return 2.00 dig"
    assert str(path).endswith(row["video/dig/path"])


def test_wandb_is_told_what_the_configuration_says_for_it(make_tracked: MakeTracked) -> None:
    init = {"entity": "us", "mode": "offline", "settings": {"init_timeout": 3}}
    told = wandb_arguments(make_tracked(init=init))
    assert (told["entity"], told["mode"], told["id"]) == ("us", "offline", "run-id")
    assert told["settings"] == {"console": "off", "init_timeout": 3}


@pytest.mark.parametrize(("host", "mode"), [("api.wandb.ai", "online"), ("example.org", "offline")])
def test_wandb_is_online_where_a_key_was_left_by_its_login(
    tmp_path: Path, make_tracked: MakeTracked, monkeypatch: pytest.MonkeyPatch, host: str, mode: str
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wandb_arguments(make_tracked())["mode"] == "offline"
    file = tmp_path / ".netrc"
    file.write_text(f"machine {host} login user password key\n")
    file.chmod(0o600)
    assert wandb_arguments(make_tracked())["mode"] == mode


def test_unreachable_names_the_reason_and_takes_any_answer_for_one() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert unreachable(f"http://127.0.0.1:{server.server_port}") == ""  # It answers with 501.
        thread.join()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert unreachable(url) == f"{url} does not answer: [Errno 111] Connection refused"
