"""The page's server where files are torn, runs vanish, and nothing can be written."""

import json
import re
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.minefleet.watch.page_server import Browser, make_run, row_of, serving_page

PATHS = ("", "/curves?key=episode_return_mean", "/marks", "/status", "/slots", "/failures", "/logs", "/videos")
GARBAGE = (b"\xff\xfe\0", b"{" * 10_000, b"null", b"", b'"text"')


def test_rows_among_garbage_and_before_a_torn_line_are_shown_by_every_view(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [row_of(number, episode_failures_by_kind={"crash": number}, eval_return_mean=2.0) for number in range(1, 40)]
    lines = [line for row in rows for line in (json.dumps(row).encode(), *GARBAGE)]
    run.metrics.write_bytes(b"\n".join(lines) + b"\n" + json.dumps(row_of(40)).encode()[:-1])
    with serving_page([run.directory]) as browser:
        (summary,) = browser.get("/api/runs").data["runs"]
        assert (summary["iteration"], summary["env_steps"], summary["wall_s"]) == (39, 3900, 19.5)
        curves = browser.get("/api/runs/run/curves?key=episode_return_mean").data
        assert curves["iteration"] == list(range(1, 40)) and curves["total"] == 39
        assert browser.get("/api/runs/run/failures").data["by_kind"] == {"crash": 39}
        assert browser.get("/api/runs/run/status").data["metrics"]["iteration"] == 39
        assert "episode_failures_by_kind.crash" in browser.get("/api/runs/run").data["keys"]


def test_a_run_that_vanishes_while_it_is_asked_for_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with serving_page([tmp_path]) as browser, ThreadPoolExecutor(4) as pool:
        for name in ("first", "second", "third", "fourth"):
            run = make_run(tmp_path / name, rows=500)
            run.logs.mkdir()
            (run.logs / "learner.log").write_text("a line\n" * 1000)
            asked = [pool.submit(browser.get, f"/api/runs/{name}{path}") for _ in range(3) for path in PATHS]
            shutil.rmtree(run.directory)
            for reply in [answer.result() for answer in asked]:
                assert reply.status in (200, 404, 503), reply.body
                assert reply.status == 200 or isinstance(reply.data["error"], str)
            assert browser.get(f"/api/runs/{name}").status == 404
        assert browser.get("/api/runs").data == {"runs": []}


def test_watch_command_answers_where_not_a_byte_can_be_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "run", rows=3)
    run.logs.mkdir()
    (run.logs / "learner.log").write_text("a line\n")
    files = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-m", "minefleet", "watch", "--listen", "127.0.0.1:0", "--no-browser"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))  # A write to any file fails, as on a full disk.
        port = re.fullmatch(r"watch at http://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())
        assert port
        browser = Browser(int(port[1]))
        for path in ("/", "/page.js", "/api/runs", "/api/machine", *(f"/api/runs/run{path}" for path in PATHS)):
            assert browser.get(path).status == 200, path
        assert browser.get("/api/runs/run/logs/learner.log").body == b"a line\n"
        process.terminate()
        assert process.stderr.read() == ""
    assert sorted(tmp_path.rglob("*")) == files
