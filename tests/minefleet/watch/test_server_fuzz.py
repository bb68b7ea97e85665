"""Hostile words in every place of a request, and hostile names of runs: no file from outside, no failure, no markup."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.minefleet.watch.page_server import Browser, make_run, serving_page

SECRET = "the-secret-of-this-machine"
HOSTILE_RUNS = ("<img src=x onerror=alert(1)>", "a b%2e%2e", "..%2f", "'\";--", "ü\u202e", "run~2", "\udcff")
WORDS = st.sampled_from(
    [
        *(
            "",
            ".",
            "..",
            "../..",
            "../../secret.log",
            "..\\secret.log",
            "/etc/passwd",
            "secret.log",
            "run.yaml",
            "~",
            "run",
        ),
        *("\0", "run\0", "actor-0\0.log", "%00", "%2e%2e%2f", "\r\nX-Evil: 1", "out", "out/secret.log", "actor-0.log"),
        *("9" * 5000, "-1", "1e999", "nan", "inf", "0x10", "²", "<script>alert(1)</script>", "{run}", "\udcff"),
    ]
) | st.text(max_size=30)
PLACES = (
    *("/{0}", "/{0}/{1}", "/api/{0}", "/api/runs/{0}", "/api/runs/{0}/status", "/api/runs/{0}/curves?key={1}"),
    *(
        "/api/runs/run/{0}",
        "/api/runs/run/logs/{0}",
        "/api/runs/run/logs/actor-0.log?bytes={0}",
        "/api/runs/run/videos/{0}",
    ),
    *("/api/runs/run/slots/{0}/{1}/frame", "/api/runs/run/slots/actor-0/{0}/frame", "/api/runs/run/difference/{0}"),
    *(
        "/api/runs/run/curves?key={0}&key={1}&points={1}",
        "/api/runs/run/curves?from={0}&to={1}",
        "/api/runs/run/curves?axis={0}",
    ),
)
KNOWN = {200, 307, 400, 403, 404, 405, 503}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    place = tmp_path_factory.mktemp("fuzz")
    run = make_run(place / "runs" / "run", rows=20)
    run.logs.mkdir()
    for secret in (place / "secret.log", place / "runs" / "secret.log"):
        secret.write_text(SECRET)
    (run.logs / "actor-0.log").write_text("a line\n")
    (run.logs / "out.log").symlink_to(place / "secret.log")
    (run.logs / "out").symlink_to(place)
    for name in HOSTILE_RUNS:
        make_run(place / "runs" / name, rows=2)
    with serving_page([place / "runs"]) as browser:
        yield browser


def escaped(word: str) -> str:
    return quote(word.encode(errors="surrogateescape" if "\udcff" in word else "replace"), safe="")


@settings(max_examples=400, deadline=None)
@given(place=st.sampled_from(PLACES), words=st.tuples(WORDS, WORDS), is_double=st.booleans())
def test_server_answers_hostile_requests_without_secrets_or_failures(
    page: Browser, place: str, words: tuple[str, str], is_double: bool
) -> None:
    parts = [quote(escaped(word), safe="") if is_double else escaped(word) for word in words]
    answer = page.get(place.format(*parts))
    assert answer.status in KNOWN
    assert SECRET.encode() not in answer.body and b"root:" not in answer.body and b"Traceback" not in answer.body
    assert "x-evil" not in answer.headers and answer.headers["x-content-type-options"] == "nosniff"
    if answer.status >= 400:
        assert answer.headers["content-type"] == "application/json" and isinstance(answer.data["error"], str)


@settings(max_examples=60, deadline=None)
@given(path=st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60))
def test_server_answers_raw_paths_without_failures(page: Browser, path: str) -> None:
    assert page.get(f"/{path}").status in KNOWN
    assert page.get(f"/api/runs/run/logs/../../../{path}").status in KNOWN


def test_runs_with_hostile_names_are_data_and_can_be_asked_for(page: Browser) -> None:
    answer = page.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    names = {run["id"] for run in answer.data["runs"]}
    assert "<img src=x onerror=alert(1)>" in names and len(names) == len(HOSTILE_RUNS) + 1
    for name in names:
        found = page.get(f"/api/runs/{escaped(name)}")
        assert (found.status, found.data["id"]) == (200, name)
