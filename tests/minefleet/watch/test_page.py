"""The page of `minefleet watch` in Debian's Chromium: over a fleet whose environments fail, and over files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import pytest
from tests.deploy.programs import program
from tests.minefleet.watch.page_server import make_run, serving_page

Browser: TypeAlias = Any
Page: TypeAlias = Any
"""Playwright's, which need not be installed."""

pytestmark = pytest.mark.fleet

ROOT = Path(__file__).parents[3]
PATIENCE_MS = 240_000
HOSTILE = "<img src=x onerror=alert(1)>"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
VIEWS = ("runs", "curves", "slots", "live", "failures", "ring", "logs", "config", "machine")
NAMES = ("Runs", "Curves", "Slots", "Live", "Failures", "Ring", "Roles & logs", "Configuration", "Machine")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED = "document.activeElement.outerHTML.slice(0, 200)"
CUT = "Array.from(document.querySelectorAll('main :is(button, select, input)')).filter(node => node.checkVisibility()"
CUT += " && !node.closest('.scroll') && node.getBoundingClientRect().right > innerWidth).map(node => node.outerHTML)"


@dataclass
class Watched:
    """A page, and all that must not happen on it."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", self._see_request)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", self._see_dialog)
        self.page.on("console", self._see_console)

    def _see_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data") and parts.hostname != "127.0.0.1":
            self.faults.append(f"a request to {request.url}")

    def _see_dialog(self, dialog: Any) -> None:
        self.faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _see_console(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(message.text)

    def fits(self) -> bool:
        """Whether nothing of the page is beyond its window."""
        return bool(self.page.evaluate(OVERFLOW) == 0 and self.page.evaluate(CUT) == [])


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; skips the test where it or Playwright is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed; `make install` brings it"
    )
    executable = program("chromium", package="chromium")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, size: dict[str, int] = DESKTOP, scheme: str = "light") -> Iterator[Watched]:
    """A new page; at the end nothing must have gone wrong on it."""
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MS)
    watched = Watched(page)
    yield watched
    page.close()
    assert watched.faults == []


@pytest.fixture(scope="module")
def fleet(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page over a fleet whose environments fail, once one has failed and an iteration is over."""
    folder = tmp_path_factory.mktemp("runs")
    settings = ["stop.env_steps=0", "env.kwargs.step_s=0.01", "train_config.batches_per_iteration=1"]
    settings += ["env.kwargs.faults={exception: 0.01}", "rollout_config.fragment_length=16"]
    command = [sys.executable, "-m", "minefleet", "train", str(ROOT / "examples/faulty.yaml"), *settings]
    with (folder / "train.txt").open("w") as said:
        process = subprocess.Popen(
            [*command, "--run-dir", str(folder / "fleet")], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        with serving_page([folder]) as server:
            while not server.get("/api/runs/fleet/failures").data.get("episodes"):
                assert process.poll() is None, (folder / "train.txt").read_text()
            yield f"http://127.0.0.1:{server.port}/"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def until(page: Page, expression: str) -> None:
    """Waits until it holds; Playwright's own waiting is refused by the page's policy against scripts."""
    while not page.evaluate(expression):
        page.wait_for_timeout(50)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[str]:
    """The address of a page over runs that are over, of which one has a hostile name and log."""
    make_run(tmp_path / "one", rows=400)
    make_run(tmp_path / "other", rows=400)
    hostile = make_run(tmp_path / HOSTILE, rows=3)
    hostile.logs.mkdir()
    (hostile.logs / f"{HOSTILE}.log").write_text(f"{HOSTILE}\n")
    with serving_page([tmp_path]) as server:
        yield f"http://127.0.0.1:{server.port}/"


def test_every_view_of_a_fleet_fits_desktop_and_phone_in_light_and_dark(chromium: Browser, fleet: str) -> None:
    shown = {
        "runs": "role=table", "curves": ".plot canvas", "slots": ".tile", "live": ".live img", "failures": ".failure",
        "ring": ".station", "logs": ".log div", "config": "td code", "machine": ".meter",
    }  # fmt: skip
    for size, scheme in product((DESKTOP, PHONE), ("light", "dark")):
        with opened(chromium, size, scheme) as watched:
            watched.page.goto(fleet)
            for view in VIEWS:
                watched.page.goto(f"{fleet}#/{view}?run=fleet")
                watched.page.locator("main").locator(shown[view]).first.wait_for()
                assert watched.fits(), (view, size)
            assert watched.page.locator("html").get_attribute("data-theme") == scheme


def test_a_run_of_one_row_is_drawn(chromium: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "young", rows=1)
    run.metrics.write_text(json.dumps(json.loads(run.metrics.read_text()) | {"env_steps": 512}) + "\n")
    with serving_page([tmp_path]) as server, opened(chromium) as watched:
        watched.page.goto(f"http://127.0.0.1:{server.port}/#/curves?run=young")
        watched.page.locator(".plot canvas").first.wait_for()
        until(watched.page, "document.querySelectorAll('.values b').length > 0")
        watched.page.wait_for_timeout(500)  # A fault comes with the drawing, after the numbers.


def test_slots_and_failures_of_a_fleet_are_filtered_and_opened(chromium: Browser, fleet: str) -> None:
    with opened(chromium) as watched:
        page = watched.page
        page.goto(f"{fleet}#/slots?run=fleet")
        page.locator(".tile").nth(7).wait_for()
        page.get_by_role("button", name="failed").click()
        until(page, "document.querySelectorAll('.tile').length == document.querySelectorAll('.tile .bad').length")
        page.locator(".tile").first.click()
        page.get_by_role("heading", name="Last failure: exception").wait_for()
        page.locator(".details .last-frame").wait_for()
        page.keyboard.press("Escape")
        page.locator(".details").wait_for(state="detached")
        page.get_by_label("Search slots").fill("no such task")
        page.get_by_text("No slot matches").wait_for()
        page.get_by_role("button", name="Show all").click()
        page.locator(".tile").nth(7).wait_for()

        page.get_by_label("Views").get_by_text("Failures").click()
        page.get_by_role("button", name="exception").click()
        page.locator("summary").first.click()
        page.locator("details[open] pre", has_text="Traceback").wait_for()
        page.get_by_role("link", name="Its lines in the log").first.click()
        page.locator(".log mark").first.wait_for()


def test_live_frames_of_chosen_slots_change(chromium: Browser, fleet: str) -> None:
    with opened(chromium) as watched:
        page = watched.page
        page.goto(f"{fleet}#/live?run=fleet&pick=actor-0/1&pick=actor-0/2")
        page.locator(".live img").nth(1).wait_for()
        assert page.locator(".live img").count() == 2
        first = page.locator(".live img").first.get_attribute("src")
        until(page, f"document.querySelector('.live img').src != '{first}'")
        page.locator(".popover summary").click()
        page.get_by_label("actor-0/1").uncheck()
        until(page, "document.querySelectorAll('.live img').length == 1")


def test_a_role_that_is_frozen_is_named_until_it_goes_on(chromium: Browser, fleet: str) -> None:
    with opened(chromium) as watched:
        page = watched.page
        page.goto(f"{fleet}#/ring?run=fleet")
        page.locator(".station").first.wait_for()
        roles = page.request.get(f"{fleet}api/runs/fleet/status").json()["roles"]
        learner = next(role["pid"] for role in roles if role["name"] == "learner")
        os.kill(learner, signal.SIGSTOP)
        try:
            page.locator(".banner", has_text="learner is").wait_for()
        finally:
            os.kill(learner, signal.SIGCONT)
        page.locator(".banner").wait_for(state="hidden")


def test_curves_of_two_runs_zoom_together_by_mouse_and_by_keys(chromium: Browser, files: str) -> None:
    with opened(chromium) as watched:
        page = watched.page
        page.goto(f"{files}#/curves?run=one&run=other")
        page.locator(".plot canvas").first.wait_for()
        page.get_by_text("800 of 800 rows").wait_for()
        until(
            page, "document.querySelector('.values b').textContent == '40'"
        )  # The row's number: the curve is smoothed.
        box = page.locator(".u-over").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=4)
        page.mouse.up()
        page.wait_for_url("**from=*")
        until(page, "!/800 of 800/.test(document.querySelector('.note').textContent)")
        page.locator(".plot").first.focus()
        page.keyboard.press("0")
        page.get_by_text("800 of 800 rows").wait_for()
        page.keyboard.press("+")
        page.wait_for_url("**from=*")
        page.get_by_label("over").select_option("wall_s")
        page.get_by_label("smoothing").fill("0.5")
        page.get_by_role("button", name="log").first.click()
        page.wait_for_url("**axis=wall_s*")
        page.get_by_text("Differences in configuration").wait_for()


def test_lines_of_a_traceback_are_as_red_as_their_record(chromium: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", rows=3)
    run.logs.mkdir()
    records = (
        "2026-11-29 ERROR it broke",
        "Traceback",
        "ValueError",
        "2026-11-29 INFO on",
        "it goes",
        "2026-11-29 WARNING slow",
    )
    (run.logs / "learner.log").write_text("\n".join(records))
    with serving_page([tmp_path]) as server, opened(chromium) as watched:
        watched.page.goto(f"http://127.0.0.1:{server.port}/#/logs?run=one")
        watched.page.locator(".log div").nth(5).wait_for()
        looks = watched.page.evaluate("Array.from(document.querySelectorAll('.log div')).map(node => node.className)")
        assert looks == ["bad", "bad", "bad", "", "", "warn"]


def test_keys_reach_every_view_search_and_help(chromium: Browser, files: str) -> None:
    with opened(chromium) as watched:
        page = watched.page
        page.goto(f"{files}#/runs?run=one")
        page.get_by_role("table").wait_for()
        for number, name in enumerate(NAMES, 1):
            page.keyboard.press(str(number))
            page.locator(f"main[aria-label='{name}']").wait_for()
        page.keyboard.press("8")
        page.locator("td code").first.wait_for()
        page.keyboard.press("/")
        page.keyboard.type("learning_rate")
        page.locator("mark").first.wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.locator("dialog[open]").wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog[open]").wait_for(state="hidden")
        page.keyboard.press("t")
        until(page, "document.documentElement.dataset.theme == 'light'")


@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_every_control_of_a_view_and_shows_where_it_is(chromium: Browser, files: str, view: str) -> None:
    controls = "main :is(a[href], button, select, input, summary, [tabindex='0']):not(:disabled)"
    with opened(chromium) as watched:
        page = watched.page
        page.goto(f"{files}#/{view}?run=one")
        page.locator("main > *").first.wait_for()
        page.get_by_text("Reading…").first.wait_for(state="detached")
        see = "node => node.dataset.seen = node.checkVisibility() ? 'no' : ''"
        page.evaluate(f"document.querySelectorAll(`{controls}`).forEach({see})")
        page.locator("main").focus()
        for _ in range(page.locator("[data-seen=no]").count()):
            page.keyboard.press("Tab")
            look = "getComputedStyle(document.activeElement)"
            assert page.evaluate(f"{look}.outlineStyle != 'none' || {look}.boxShadow != 'none'"), page.evaluate(FOCUSED)
            page.evaluate("document.activeElement.dataset.seen = 'yes'")
        assert page.locator("[data-seen=no]").count() == 0


def test_names_of_a_run_and_its_log_are_text_and_no_script(chromium: Browser, files: str) -> None:
    with opened(chromium) as watched:
        page = watched.page
        for view in VIEWS:
            page.goto(f"{files}#/{view}?run={quote(HOSTILE)}&log={quote(HOSTILE)}.log&q={quote('<img')}&run=one")
            page.locator("main > *").first.wait_for()
            assert page.locator("img[src=x]").count() == 0
        page.goto(f"{files}#/logs?run={quote(HOSTILE)}")
        page.locator(".log", has_text=HOSTILE).wait_for()
