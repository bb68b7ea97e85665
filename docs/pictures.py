"""Makes the pictures of the documentation anew from real runs: `make pictures`, about twelve minutes on two cores.

    runs      CartPole three times, and a fleet of `examples/flaky_crafter.py`, in a folder of their own that is removed
    terminal  commands in a pseudo-terminal, written by Rich as SVG
    page      `minefleet watch` in Debian's Chromium, as PNG of few colours, and as a film in WebP
    charts    numbers of those runs, drawn by Matplotlib

Needs the packages of `.[dev]` and the program `chromium`. `--keep DIR` takes the runs from there where they are over,
and leaves them. `ring.svg` is drawn by hand; pictures of benchmarks are made by those, of films by `minefleet demo`.
"""

import argparse
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WORLD = ROOT / "examples" / "flaky_crafter.py"
PROGRAM = (str(Path(sys.executable).with_name("minefleet")),)
COLUMNS, ROWS = 100, 40
CLEARED = re.compile(r"\r(?:\x1b\[2K)?(?:\x1b\[1A\x1b\[2K)+|\r\x1b\[2K")
"""Rich's way to draw a live view anew: everything before is gone from the screen."""
FONT = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)
"""Of Rich's SVG, it would be loaded from another host."""
DESKTOP, PHONE = (1200, 760), (390, 800)
COLOURS = 256
PHONES_GAP = 16
WINDOW = 20
BOTTOM = """8 + Math.max(...[...document.querySelectorAll('main > *, .charts > *')]
    .map((node) => node.getBoundingClientRect().bottom).filter((bottom) => bottom <= innerHeight))"""
"""Below the last panel that the window shows as a whole."""
FILM_SIZE, FRAME_S = (1040, 660), 0.2


def main() -> None:
    """Makes all pictures, and says how large they are together."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="the folder of the runs, which stays")
    kept = parser.parse_args().keep
    folder = kept or Path(tempfile.mkdtemp(prefix="minefleet-"))
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    try:
        cartpole(folder)
        with watching(folder) as address:
            fleet(folder, address)
            finished(folder, address)
        commands(folder)
        charts(folder)
    finally:
        if not kept:
            shutil.rmtree(folder)
    sizes = [path.stat().st_size for path in IMAGES.iterdir()]
    print(f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")  # noqa: T201


# Runs


def cartpole(folder: Path) -> None:
    """Trains three runs that differ in one key each; the first is that of the quick start, stopped, and resumed."""
    if (folder / "runs/gentle/result.json").exists():
        return
    with terminal(folder, "train CartPole-v1 --run-dir runs/cartpole eval_interval=60") as screen:
        screen.wait_for(lambda: steps_of(folder / "runs/cartpole") > 110_000)
        svg(folder, "terminal-train", "minefleet train CartPole-v1", screen.shown())
        screen.end()
        svg(folder, "terminal-train-end", "minefleet train CartPole-v1", screen.shown())
    shutil.copy(folder / "runs/cartpole/curve.png", IMAGES / "quickstart.png")
    more = ["--resume", "runs/cartpole", "stop.env_steps=230000", "train_config.entropy_bonus_coef=0.001"]
    subprocess.run([*PROGRAM, "train", *more], cwd=folder, check=True, capture_output=True)
    serial = [
        subprocess.Popen(
            [*PROGRAM, "train", "CartPole-v1", "--serial", *settings], cwd=folder, stdout=subprocess.DEVNULL
        )
        for settings in (
            ["--run-dir", "runs/seed-1", "stop.env_steps=60000", "seed=1"],
            ["--run-dir", "runs/gentle", "stop.env_steps=60000", "train_config.learning_rate=2e-4"],
        )
    ]
    if any(process.wait() for process in serial):
        sys.exit("a serial run failed")


def steps_of(run: Path) -> int:
    """Environment steps of a run so far."""
    rows = rows_of(run)
    return int(rows[-1]["env_steps"]) if rows else 0


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics so far."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def fleet(folder: Path, address: str) -> None:
    """Trains in the world that fails, shows the page and the terminal meanwhile, and freezes the learner once."""
    run = folder / "runs/crafter"
    if (run / "result.json").exists():
        return
    shutil.copy(WORLD, folder)
    with terminal(folder, f"train {WORLD.name} --run-dir runs/crafter stop.env_steps=0") as screen:
        screen.wait_for(lambda: len(rows_of(run)) >= 25 and any((run / "videos").glob("*.mp4")))
        for name, arguments in LIVE_COMMANDS.items():
            print_of(folder, name, arguments)
        svg(folder, "terminal-failures", f"minefleet train {WORLD.name}", screen.shown())
        with chromium() as browser:
            pages(browser, address, LIVE_PAGES)
            film(browser, address)
            frozen(browser, address, json.loads((run / "roles/learner.json").read_text())["pid"])
        screen.process.send_signal(signal.SIGTERM)
        screen.end()


def finished(folder: Path, address: str) -> None:
    """Shows runs that are over, on the page."""
    with chromium() as browser:
        pages(browser, address, PAGES)


# The terminal


class Screen:
    """A pseudo-terminal in which `minefleet` runs; reads all that it shows."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self._screen, other = pty.openpty()
        termios.tcsetwinsize(other, (ROWS, COLUMNS))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # As where the environment is activated.
        environ = os.environ | {"PATH": path, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments], cwd=folder, env=environ, stdin=other, stdout=other, stderr=other
        )
        os.close(other)
        self._read = bytearray()
        self._reader = threading.Thread(target=self._read_all)
        self._reader.start()

    def _read_all(self) -> None:
        try:
            while data := os.read(self._screen, 65536):
                self._read += data
        except OSError:
            pass  # No process has the terminal any more.
        os.close(self._screen)

    def shown(self) -> str:
        """The last view that is whole, with its colours."""
        frames = CLEARED.split(self._read.decode(errors="ignore").replace("\r\n", "\n"))
        return next(frame for frame in reversed(frames) if re.sub(r"\x1b\[[^m]*[a-zA-Z]", "", frame).strip())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until it holds; ends the program where the command ends first."""
        while not condition():
            if self.process.poll() is not None:
                sys.exit(f"a run ended early: {self._read.decode(errors='ignore')}")
            time.sleep(0.5)

    def end(self) -> None:
        """Waits until the command is over and all is read."""
        self.process.wait()
        self._reader.join()


@contextmanager
def terminal(folder: Path, arguments: str) -> Iterator[Screen]:
    """A command in a terminal; it is ended at the end."""
    screen = Screen(folder, arguments.split())
    try:
        yield screen
    finally:
        if screen.process.poll() is None:
            screen.process.send_signal(signal.SIGTERM)
        screen.end()


def print_of(folder: Path, name: str, arguments: str) -> None:
    """Draws all that a command prints."""
    with terminal(folder, arguments) as screen:
        screen.end()
        svg(folder, f"terminal-{name}", f"minefleet {arguments}", screen.shown())


def svg(folder: Path, name: str, command: str, text: str) -> None:
    """Writes a command and its answer as `name.svg`; nothing in it comes from another host."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    text = re.sub(r"\x1b\[\??[0-9;]*[A-Zhl]", "", text)
    for place in (ROOT, Path(sys.prefix).resolve().parent, folder):
        text = text.replace(str(place), "~/minefleet")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(text.strip("\n")), "", sep="\n")  # The last line would be cut below its letters.
    look = FONT.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    drawn = console.export_svg(title="", theme=SVG_EXPORT_THEME, code_format=look, unique_id=name)
    (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n")


LIVE_COMMANDS = {"status": "status runs/crafter", "replay": "replay stats runs/crafter"}
COMMANDS = {
    "eval": "eval runs/cartpole --episodes 20",
    "explain": "config explain discount CartPole-v1",
    "diff": "config show --diff CartPole-v1 seed=3",
    "doctor": "doctor",
    "env": "env CartPole-v1",
    "unknown-key": "train CartPole-v1 train_config.lerning_rate=0.001",
    "parameters": "parameters list runs/cartpole",
}


def commands(folder: Path) -> None:
    """Draws commands that need no live run."""
    for name, arguments in COMMANDS.items():
        print_of(folder, name, arguments)
    asked = [*PROGRAM, "replay", "why-dropped", "runs/crafter", "--json"]
    said = json.loads(subprocess.run(asked, cwd=folder, check=True, capture_output=True).stdout)
    left = [fragment for shard in said["shards"] for fragment in shard["departures"]]
    left.sort(key=lambda fragment: fragment["reason"] == "trained")  # One that was not, where there is one.
    print_of(folder, "why-dropped", f"replay why-dropped runs/crafter --stream {left[0]['stream']} --limit 12")


# The page


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """`minefleet watch` of these runs; gives its address."""
    command = [*PROGRAM, "watch", "runs", "--no-browser", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().removeprefix("watch at ").strip()
        finally:
            server.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium; Playwright's own is not installed."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield browser
        browser.close()


class Shot(NamedTuple):
    """A picture of the page; several phones stand side by side."""

    name: str
    views: tuple[str, ...]
    size: tuple[int, int] = DESKTOP
    is_dark: bool = False
    act: Callable[[Any], object] = lambda page: None
    part: str = ""
    """A selector, for a part of the page only."""


RUNS = "run=cartpole&run=seed-1&run=gentle"
CRAFTER = "run=crafter"


def open_traceback(page: Any) -> None:
    """Opens the first slot whose last failure was an exception; the first one where none was."""
    failures = page.locator("main details.failure > summary")
    raised = failures.filter(has_text="exception")
    (raised if raised.count() else failures).first.click()


def open_failed(page: Any) -> None:
    """Opens the slot that failed most."""
    tiles = page.locator("main .tile")
    failures = [int(f"0{re.sub('[^0-9]', '', text)}") for text in page.locator("main .tile .bad").all_inner_texts()]
    tile = tiles.filter(has_text=f"{max(failures)} ✕") if failures else tiles
    tile.first.click()


LIVE_PAGES = (
    Shot("watch-runs", (f"runs?{RUNS}",)),
    Shot("watch-slots", (f"slots?{CRAFTER}",)),
    Shot("watch-slot", (f"slots?{CRAFTER}",), (1200, 940), is_dark=True, act=open_failed),
    Shot("watch-live", (f"live?{CRAFTER}",)),
    Shot("watch-live-dark", (f"live?{CRAFTER}",), is_dark=True),
    Shot("watch-videos", (f"live?{CRAFTER}",), part="main > .panel:last-child"),
    Shot("watch-failures", (f"failures?{CRAFTER}",), (1200, 940), act=open_traceback),
    Shot("watch-ring", (f"ring?{CRAFTER}",), (1200, 1000)),
    Shot("watch-ring-dark", (f"ring?{CRAFTER}",), is_dark=True, part=".ring"),
    Shot("watch-logs", (f"logs?{CRAFTER}&log=actor-0.log",)),
    Shot("watch-machine", ("machine",)),
    Shot("watch-phone", tuple(f"{view}?{CRAFTER}" for view in ("curves", "slots", "ring")), PHONE),
    Shot("watch-phone-dark", tuple(f"{view}?{CRAFTER}" for view in ("live", "failures", "logs")), PHONE, is_dark=True),
)
PAGES = (
    Shot("watch-curves", (f"curves?{RUNS}",)),
    Shot("watch-curves-dark", (f"curves?{RUNS}&axis=wall_s&smooth=0.6",), is_dark=True),
    Shot(
        "watch-marks",
        ("curves?run=cartpole&key=episode_return_mean&key=learning_rate&smooth=0",),
        (1200, 1200),
        act=lambda page: page.locator("main .fold > summary").click(),
    ),
    Shot("watch-tasks", (f"curves?{CRAFTER}&key=tasks.*.return_mean&key=step_shares.*.trained_share",), (1200, 420)),
    Shot("watch-difference", ("config?run=cartpole&other=gentle",)),
    Shot("watch-config", ("config?run=cartpole&q=interval",)),
    Shot("watch-keys", (f"curves?{RUNS}",), act=lambda page: page.keyboard.press("?"), part="dialog"),
)


def pages(browser: Any, address: str, shots: Sequence[Shot]) -> None:
    """Takes the pictures."""
    for shot in shots:
        taken = [Image.open(io.BytesIO(view_of(browser, f"{address}#/{view}", shot))) for view in shot.views]
        width = sum(image.width for image in taken) + PHONES_GAP * (len(taken) - 1)
        whole = Image.new("RGB", (width, max(image.height for image in taken)), "white")
        for number, image in enumerate(taken):
            whole.paste(image, (number * (image.width + PHONES_GAP), 0))
        save(whole, shot.name)


def view_of(browser: Any, address: str, shot: Shot) -> bytes:
    """A view, once its numbers and frames are there."""
    size = dict(zip(("width", "height"), shot.size, strict=True))
    page = browser.new_page(viewport=size, color_scheme="dark" if shot.is_dark else "light")
    page.goto(address)
    page.locator("main :is(.panel, .ring)").first.wait_for()
    page.wait_for_timeout(3000)
    shot.act(page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    bottom = page.evaluate(BOTTOM) if len(shot.views) == 1 else shot.size[1]  # Phones are as tall as one another.
    whole = {"x": 0, "y": 0, "width": shot.size[0], "height": bottom}
    picture: bytes = page.locator(shot.part).screenshot() if shot.part else page.screenshot(clip=whole)
    page.close()
    return picture


def save(image: Image.Image, name: str) -> None:
    """Writes a PNG of few colours."""
    few = image.convert("RGB").quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE)
    few.save(IMAGES / f"{name}.png", optimize=True)


def frozen(browser: Any, address: str, pid: int) -> None:
    """Freezes a role, takes a picture once the page says so, and lets it go on."""
    page = browser.new_page(viewport={"width": DESKTOP[0], "height": 600})
    page.goto(f"{address}#/ring?{CRAFTER}")
    page.locator(".ring").wait_for()
    os.kill(pid, signal.SIGSTOP)
    try:
        page.locator(".banner p").first.wait_for()
        save(Image.open(io.BytesIO(page.screenshot())), "watch-role-gone")
    finally:
        os.kill(pid, signal.SIGCONT)
    page.locator(".banner").wait_for(state="hidden")


def film(browser: Any, address: str) -> None:
    """Films a walk through the views while the fleet trains, as `watch.webp`."""
    page = browser.new_page(viewport=dict(zip(("width", "height"), FILM_SIZE, strict=True)))
    page.goto(f"{address}#/curves?{CRAFTER}")
    page.locator("main .panel").first.wait_for()
    page.wait_for_timeout(3000)
    frames: list[Image.Image] = []

    def shoot(seconds: float) -> None:
        for _ in range(round(seconds / FRAME_S)):
            next_s = time.monotonic() + FRAME_S
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
            page.wait_for_timeout(max(0.0, 1000 * (next_s - time.monotonic())))

    shoot(2)
    for view, seconds in (("Slots", 1.5), ("Live", 4), ("Failures", 2), ("Ring", 2.5)):
        page.get_by_label("Views").get_by_text(view, exact=True).click()
        page.wait_for_timeout(1500)
        if view == "Live":
            page.locator(".lives .frame img").nth(7).wait_for()
        shoot(seconds)
        if view == "Slots":
            open_failed(page)
            page.wait_for_timeout(1500)
            shoot(2)
    page.close()
    first, *others = frames
    first.save(
        IMAGES / "watch.webp", save_all=True, append_images=others, duration=round(1000 * FRAME_S), loop=0,
        quality=60, method=6, minimize_size=True,
    )  # fmt: skip


# Charts


def charts(folder: Path) -> None:
    """Draws what pages claim, from numbers of these runs and of the learner's own functions."""
    fleet_rows = rows_of(folder / "runs/crafter")
    both = [row for row in fleet_rows if shares_of(row, "slow") and shares_of(row, "fast")]
    axes = axes_of("Shares of two tasks, one eight times as slow", "environment steps", "share of the steps")
    for key, look in (("played_share", "--"), ("trained_share", "-")):
        for task, colour in (("fast", "#0072b2"), ("slow", "#c25400")):
            shares = [shares_of(row, task)[key] for row in both]
            label = f"{task}, {key.partition('_')[0]}"
            axes.plot([row["env_steps"] for row in both], shares, look, color=colour, label=label)
    draw(axes, "step-shares")

    rows = rows_of(folder / "runs/cartpole")
    axes = axes_of("Staleness of the data that CartPole is trained on", "environment steps", "versions")
    windows = [rows[end - WINDOW : end] for end in range(WINDOW, len(rows), WINDOW)]
    steps = [window[-1]["env_steps"] for window in windows]
    means = [sum(row["staleness_mean"] for row in window) / WINDOW for window in windows]
    axes.plot(steps, means, color="#0072b2", label=f"mean of {WINDOW} iterations")
    axes.plot(
        steps, [max(row["staleness_max"] for row in window) for window in windows], color="#c25400", label="greatest"
    )
    axes.set_ylim(0, 1.25)
    draw(axes, "staleness")

    kinds = fleet_rows[-1]["episode_failures_by_kind"]
    axes = axes_of("Failures of a fleet of Crafter, by kind", "", "episodes that failed")
    axes.bar([*kinds], [*kinds.values()], color="#0072b2", width=0.5, label=f"in {fleet_rows[-1]['env_steps']:,} steps")
    draw(axes, "failure-kinds")

    axes = axes_of("Advantage that a short fragment lacks", "steps in the fragment", "share that is missing")
    lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for gae_lambda, colour in ((0.95, "#0072b2"), (0.8, "#c25400")):
        axes.plot(
            lengths, [missing(length, gae_lambda) for length in lengths], "o-", color=colour, label=f"λ {gae_lambda}"
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    draw(axes, "fragment-cuts")


def shares_of(row: dict[str, Any], task: str) -> dict[str, Any]:
    """The shares of a task that was trained on lately; empty where it was not."""
    shares: dict[str, Any] = row["step_shares"].get(task, {})
    return shares if shares.get("trained_steps") else {}


def missing(length: int, gae_lambda: float, discount: float = 0.99) -> float:
    """The share that the mean advantage of a fragment lacks for a reward of 1 a step and values of 0."""
    import torch

    from minefleet_learner.algorithms.gae import generalized_advantages

    def mean(steps: int) -> float:
        ones, zeros, none = torch.ones(1, steps), torch.zeros(1, steps), torch.zeros(1, steps, dtype=torch.bool)
        found = generalized_advantages(ones, zeros, zeros, none, none, discount=discount, gae_lambda=gae_lambda)
        return float(found[0, :length].mean())

    return 1 - mean(length) / mean(length + 2000)


def axes_of(title: str, x: str, y: str) -> Any:
    """Axes in the look of `curve.png`."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(7, 3.2), layout="constrained").add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def draw(axes: Any, name: str) -> None:
    """Writes a chart."""
    axes.legend(frameon=False, fontsize="small")
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="png", dpi=120)
    save(Image.open(buffer), name)


if __name__ == "__main__":
    main()
