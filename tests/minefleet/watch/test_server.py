import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from tests.minefleet.watch.page_server import Browser, make_run, row_of, serving_page

from minefleet.config.security import SecurityConfig
from minefleet.core.errors import NotFoundError
from minefleet.monitoring.jsonl_tail import AXES
from minefleet.monitoring.status import read_status
from minefleet.runs.episode_table import EPISODE_COLUMNS
from minefleet.v1 import slots_service_pb2, slots_service_pb2_grpc, status_service_pb2
from minefleet_actor.slot_watch_service import SlotsServicer
from minefleet_runtime.grpc_server.serve import serving
from minefleet_runtime.role_context import RoleContext

HOSTILE = "<img src=x onerror=alert(1)>"


def test_runs_appear_by_themselves_newest_first_and_share_no_name(tmp_path: Path) -> None:
    with serving_page([tmp_path / "a", tmp_path / "b"]) as browser:
        assert browser.get("/api/runs").data == {"runs": []}
        for number, directory in enumerate((tmp_path / "a" / "run", tmp_path / "b" / "run")):
            os.utime(make_run(directory, rows=3).directory / "run.yaml", (number, number))
        newest, oldest = browser.get("/api/runs").data["runs"]
        assert (newest["id"], newest["directory"]) == ("run", str(tmp_path / "b" / "run"))
        assert (oldest["id"], oldest["env"], oldest["iteration"]) == ("run~2", "CartPole-v1", 3)
        assert browser.get("/api/runs/run~2").data["directory"] == oldest["directory"]


def test_details_curves_and_marks_are_those_of_the_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    evaluated = {"eval_return_mean": 7.0, "eval_policy_version": 4}
    rows = [row_of(1, loss=float("nan"), tasks={"a,b": 1.0}), row_of(2, **evaluated), row_of(3, **evaluated)]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 4, "env')
    with serving_page([run.directory]) as browser:
        details = browser.get("/api/runs/run").data
        assert details["config"]["env"]["id"] == "CartPole-v1" and "loop_share.training" in details["keys"]
        curves = browser.get("/api/runs/run/curves?key=loss&key=eval_return_mean&from=100&to=200&axis=env_steps").data
        assert curves["env_steps"] == [100, 200] and not curves["is_thinned"] and curves["total"] == 2
        assert curves["columns"] == {"loss": [None, None], "eval_return_mean": [None, 7.0]}
        assert browser.get("/api/runs/run/curves?key=tasks.a,b").data["columns"] == {"tasks.a,b": [1.0, None, None]}
        (evaluation,) = browser.get("/api/runs/run/marks").data["evaluations"]
        assert (evaluation["env_steps"], evaluation["return_mean"], evaluation["policy_version"]) == (200, 7.0, 4)


def test_restarts_and_changes_stand_where_the_journal_says_and_its_garbage_nowhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=3)
    change = {"key": HOSTILE, "old": 1, "new": [2]}
    lines = [
        {"event": "start", **place_of(0)},
        {"event": "restart", "name": "actor-0", "how": "exit code 1", **place_of(2)},
        {"event": "restart", "name": "learner-1", "how": "killed by SIGKILL", **place_of(3)},
        {"event": "resume", "keys": [], **place_of(1)},
        {"event": "resume", "keys": [change, 7, None], **place_of(2)},
        *({"event": "resume", "keys": 5} | place for place in ({}, place_of(1) | {"env_steps": "x"})),
        {"event": "set", "keys": [change], "why": "later", **place_of(3)},
        {"event": "rollback", "why": HOSTILE, **place_of(1)},
        {"event": "resume", "keys": [], **place_of(1)},
        {"event": [], "name": [], "keys": {}, **place_of(3)},
    ]
    torn = json.dumps(lines[1])[:-9].encode()
    (run.directory / "journal.jsonl").write_bytes(
        b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"\xff\n[]\n" + torn
    )
    with serving_page([run.directory]) as browser:
        marks = browser.get("/api/runs/run/marks").data
    assert marks["restarts"] == [
        {"what": "actor-0 started again (exit code 1)", **place_of(2)},
        {"what": "learner started again (killed by SIGKILL)", **place_of(1)},
        {"what": "learner started again", **place_of(2)},
        {"what": f"learner started again (rolled back: {HOSTILE})", **place_of(1)},
    ]
    assert marks["config_changes"] == [{"keys": [change], **place_of(number)} for number in (2, 3)]


def place_of(number: int) -> dict[str, Any]:
    return {axis: row_of(number)[axis] for axis in AXES}


def test_difference_of_two_runs_names_the_keys(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other")
    text = (other.directory / "run.yaml").read_text()
    (other.directory / "run.yaml").write_text(text.replace("seed: 0", "seed: 5", 1))
    with serving_page([tmp_path]) as browser:
        found = browser.get("/api/runs/one/difference/other").data
        assert found == {"keys": [{"key": "seed", "this": one.config.seed, "other": 5}]}
        assert browser.get("/api/runs/one/difference/none").status == 404


class Slots:
    """Slots of an actor, of which the first shows a picture, the second has failed, and the third begins to render."""

    picture = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)

    def slots(self) -> list[slots_service_pb2.Slot]:
        failed = slots_service_pb2.Slot(failures=2, task="door", state=slots_service_pb2.SLOT_STATE_BLOCKED)
        failed.last_failure.kind, failed.last_failure.text, failed.last_failure.has_frame = "crash", HOSTILE, True
        return [slots_service_pb2.Slot(state=slots_service_pb2.SLOT_STATE_STEPPING, episode_return=1.5), failed]

    def frame(self, slot: int, *, before_failure: bool) -> Any:
        if slot > 2 or before_failure != (slot == 1):
            raise NotFoundError("there is no such picture")
        return {0: self.picture, 1: self.picture[::-1], 2: self.picture[:0, :0]}[slot]


def test_slots_frames_and_failures_are_those_of_an_actor_that_may_die_and_return(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=1)
    servicer: Any = SlotsServicer()
    servicer.view = Slots()
    context = RoleContext(run=run, role=status_service_pb2.ROLE_ACTOR, name="actor-0", metrics_address="127.0.0.1:9")

    def register(server: Any) -> None:
        slots_service_pb2_grpc.add_SlotsServiceServicer_to_server(servicer, server)

    with serving_page([run.directory]) as browser:
        with serving(context, "127.0.0.1:0", register):
            (actor,) = browser.get("/api/runs/run/slots").data["actors"]
            assert actor["error"] is None and [slot["state"] for slot in actor["slots"]] == ["stepping", "blocked"]
            assert actor["slots"][0]["episode_return"] == 1.5 and actor["slots"][0]["value"] is None
            assert actor["slots"][0]["trained_steps"] is actor["slots"][0]["trained_share"] is None, "replay is silent"
            (failed,) = browser.get("/api/runs/run/failures").data["slots"]
            assert failed["has_frame"]
            assert (failed["actor"], failed["slot"], failed["kind"], failed["text"]) == ("actor-0", 1, "crash", HOSTILE)
            frame = browser.get("/api/runs/run/slots/actor-0/0/frame")
            assert frame.headers["content-type"] == "image/png"
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(frame.body))), Slots.picture)
            before = browser.get("/api/runs/run/slots/actor-0/1/frame?of=failure")
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(before.body))), Slots.picture[::-1])
            assert browser.get("/api/runs/run/slots/actor-0/0/frame?of=failure").status == 404
            assert browser.get("/api/runs/run/slots/actor-0/0/frame?of=tomorrow").status == 400
            nothing_yet = browser.get("/api/runs/run/slots/actor-0/2/frame")
            assert (nothing_yet.status, nothing_yet.body) == (204, b"")
            assert browser.get("/api/runs/run/slots/actor-0/3/frame").status == 404
            assert browser.get("/api/runs/run/slots/actor-1/0/frame").status == 404
            status = browser.get("/api/runs/run/status").data
            assert status["roles"][0]["name"] == "actor-0" and status["metrics"] == read_status(run.directory).metrics
            assert browser.get("/api/runs").data["runs"][0]["is_live"]
            card = (run.directory / "roles" / "actor-0.json").read_text()
        (run.directory / "roles").mkdir(exist_ok=True)
        (run.directory / "roles" / "actor-0.json").write_text(card)
        assert browser.get("/api/runs/run/slots/actor-0/0/frame").status == 503
        while not (actor := browser.get("/api/runs/run/slots").data["actors"][0])["error"]:
            pass  # The last answer is still fresh.
        assert actor["slots"] == []


def test_actor_of_an_older_version_is_said_to_show_no_slots(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=1)
    context = RoleContext(run=run, role=status_service_pb2.ROLE_ACTOR, name="actor-0", metrics_address="127.0.0.1:9")
    with serving_page([run.directory]) as browser, serving(context, "127.0.0.1:0"):
        (actor,) = browser.get("/api/runs/run/slots").data["actors"]
        assert actor["error"] == "this actor is of an older version: it shows no slots" and actor["slots"] == []
        frame = browser.get("/api/runs/run/slots/actor-0/0/frame")
        assert (frame.status, frame.data["error"]) == (404, actor["error"])


def test_failed_episodes_are_listed_with_their_kind(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.metrics.write_text(json.dumps(row_of(1, episode_failures_by_kind={"crash": 3})) + "\n")
    values = dict.fromkeys(EPISODE_COLUMNS, "1") | {"task": HOSTILE, "failure": "crash", "metrics": "{}"}
    lines = [",".join(EPISODE_COLUMNS), ",".join(values.values()), ",".join((values | {"failure": ""}).values()), "1,2"]
    run.episodes.write_text("\n".join(lines))
    with serving_page([run.directory]) as browser:
        found = browser.get("/api/runs/run/failures").data
    assert found["by_kind"] == {"crash": 3}
    assert [(episode["task"], episode["failure"]) for episode in found["episodes"]] == [(HOSTILE, "crash")]


def test_logs_and_videos_are_read_within_the_run_only(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "secret.log").write_text("secret")
    (tmp_path / "secret.mp4").write_text("secret")
    videos = run.directory / run.config.rollout_config.worker_config.video_output_dir
    for folder in (run.logs, videos):
        folder.mkdir()
    (run.logs / "actor-0.log").write_text("first\nsecond\nthird\n")
    (run.logs / f"{HOSTILE}.log").write_text(HOSTILE)
    (run.logs / "link.log").symlink_to(tmp_path / "secret.log")
    (videos / "version-7-s-1.mp4").write_bytes(b"0123456789")
    (videos / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (videos / ".recording-1.mp4").write_bytes(b"")
    with serving_page([run.directory]) as browser:
        logs = [log["name"] for log in browser.get("/api/runs/run/logs").data["logs"]]
        assert logs == sorted(["actor-0.log", f"{HOSTILE}.log"])
        tail = browser.get("/api/runs/run/logs/actor-0.log?bytes=8")
        assert tail.body == b"third\n" and tail.headers["content-type"].startswith("text/plain")
        assert browser.get(f"/api/runs/run/logs/{quote(HOSTILE)}.log").headers["x-content-type-options"] == "nosniff"
        (video,) = browser.get("/api/runs/run/videos").data["videos"]
        assert (video["name"], video["version"], video["bytes"]) == ("version-7-s-1.mp4", 7, 10)
        part = browser.get("/api/runs/run/videos/version-7-s-1.mp4", Range="bytes=2-4")
        assert (part.status, part.body, part.headers["content-type"]) == (206, b"234", "video/mp4")
        for path in ("logs/link.log", "videos/link.mp4", "logs/..%2Frun.yaml", "videos/%2Fetc%2Fpasswd"):
            assert browser.get(f"/api/runs/run/{path}").status == 404
        shutil.rmtree(run.logs)
        run.logs.symlink_to(tmp_path)
        assert browser.get("/api/runs/run/logs").data == {"logs": []}


def test_failures_are_shown_without_a_certificate_where_no_actor_has_left_a_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=1)
    services = replace(run.config.services, security=SecurityConfig(certificates=str(tmp_path / "none")))
    replace(run, config=replace(run.config, services=services)).write()
    with serving_page([tmp_path]) as browser:
        assert browser.get("/api/runs/run/slots").data == {"actors": []}
        assert browser.get("/api/runs/run/failures").data == {"by_kind": {}, "episodes": [], "slots": []}
        assert browser.get("/api/runs/run/status").status == 503


@pytest.mark.parametrize("path", ["", "/curves", "/marks", "/status", "/slots", "/failures", "/logs", "/videos"])
def test_a_run_with_broken_files_is_answered_in_a_sentence_and_others_go_on(tmp_path: Path, path: str) -> None:
    broken = make_run(tmp_path / "broken")
    make_run(tmp_path / "whole", rows=2)
    (broken.directory / "run.yaml").write_text("config: {new_key: 1}\nschema: {}\narchitecture: x\n")
    broken.metrics.write_bytes(b'\xff\xfe\0\n{"iteration": "x"}\nnull\n')
    broken.episodes.write_text("no,table\n1\n")
    (broken.directory / "roles").mkdir()
    for number, text in enumerate(("", "[]", "{", '{"name": 1}', "[" * 99999)):
        (broken.directory / "roles" / f"{number}.json").write_text(text)
    with serving_page([tmp_path]) as browser:
        assert {run["id"] for run in browser.get("/api/runs").data["runs"]} == {"broken", "whole"}
        answer = browser.get(f"/api/runs/broken{path}")
        assert answer.status == 200 or (answer.status == 503 and answer.data["error"])
        assert "Traceback" not in answer.body.decode()
        assert browser.get(f"/api/runs/whole{path}").status == 200
        shutil.rmtree(broken.directory)
        gone = browser.get(f"/api/runs/broken{path}")
        assert (gone.status, gone.data) == (404, {"error": "there is no such run"})


def test_a_foreign_host_gets_nothing_and_every_answer_forbids_scripts_of_others(tmp_path: Path) -> None:
    with serving_page([tmp_path]) as browser:
        for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "127.0.0.1@evil", "[::1"):
            assert browser.get("/api/runs", host=host).status in (400, 403)
        for host in ("localhost:80", "127.0.0.1", "[::1]:9", "LOCALHOST"):
            assert browser.get("/api/runs", host=host).status == 200
        for path in ("/", "/api/runs", "/none", "/api/runs/none"):
            headers = browser.get(path).headers
            assert "default-src 'self'" in headers["content-security-policy"] and "script" not in headers
            assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert browser.get("/api/runs", method=method).status == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_is_asked_for_and_becomes_a_cookie_that_scripts_cannot_read(tmp_path: Path, host: str) -> None:
    with serving_page([tmp_path], token="right", host=host) as browser:
        for path in ("/", "/api/runs", "/page.js", "/?token=wrong", "/?token=", "/?token=r%00", "/?token=%ff"):
            assert browser.get(path).status == 401
        first = browser.get("//evil.example/?token=right")
        assert (first.status, first.headers["location"]) == (303, "/")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie and re.search("samesite=strict", cookie, re.IGNORECASE)
        assert browser.get("/api/runs", Cookie=cookie.partition(";")[0]).status == 200
        assert browser.get("/api/runs", Authorization="Bearer right").status == 200
        assert browser.get("/api/runs", Cookie="minefleet-watch=wrong").status == 401


def test_watch_command_prints_the_address_at_once_and_ends_on_a_signal(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one")
    command = [sys.executable, "-m", "minefleet", "watch", "--listen", "127.0.0.1:0", "--no-browser"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = re.fullmatch(r"watch at http://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())
        assert port
        browser = Browser(int(port[1]))
        assert [run["id"] for run in browser.get("/api/runs").data["runs"]] == ["one"]
        assert browser.get("/api/machine").data["cores"] >= 1
        assert b"minefleet" in browser.get("/").body
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == ""


@pytest.mark.parametrize(
    "listen", ["8800", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", ":80", "127.0.0.1:²", "127.0.0.1:" + "9" * 5000]
)
def test_watch_command_refuses_an_address_that_is_none(tmp_path: Path, listen: str) -> None:
    command = [sys.executable, "-m", "minefleet", "watch", "--no-browser", "--listen", listen]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--listen must be host:port" in done.stderr


def test_importing_the_server_loads_neither_torch_nor_services() -> None:
    heavy = (
        "[name for name in sys.modules if name.partition('.')[0] in ('torch', 'minefleet_runtime', 'minefleet_actor')]"
    )
    code = f"import sys, minefleet.watch.server as _; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
