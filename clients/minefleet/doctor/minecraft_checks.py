"""Checks a machine for what Minecraft needs: Java, a display, an engine."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minefleet.doctor.finding import Finding, Level, ask
from minefleet_env.minecraft import minestudio_jar_path

GUIDE = "docs/minecraft.md"
MINERL, MINESTUDIO = "minerl", "minestudio"
JAR = Path("build", "libs", "mcprec-6.13.jar")
"""The engine of MineRL, in its folder."""
JAVA = 8
JAVA_ANSWERS_S = 20.0


def check_minecraft(looked: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields what there is for the packages that an interpreter has, as `inspect_python` returns."""
    yield _java()
    yield from _display(looked["packages"])
    if MINERL in looked["packages"]:
        yield _engine(MINERL, Path(looked["minerl"], "MCP-Reborn", JAR), "build it with MineRL's own setup")
    if MINESTUDIO in looked["packages"]:
        fetch = f"fetch it with `{looked['name']} -m minestudio.simulator.entry -y`, and set MINESTUDIO_DIR"
        yield _engine(MINESTUDIO, minestudio_jar_path.jar(), fetch)


def _java() -> Finding:
    output = ask(["java", "-version"], os.environ, JAVA_ANSWERS_S)
    if isinstance(output, TimeoutError):
        return Finding(
            level=Level.PROBLEM, subject="java", text=f"{shutil.which('java')} does not answer: {output.strerror}"
        )
    if isinstance(output, OSError):
        text = f"there is none; Minecraft needs Java {JAVA}: {GUIDE}"
        return Finding(level=Level.PROBLEM, subject="java", text=text)
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    line = (output.strip().splitlines() or ["it said nothing"])[0]
    if found is None or int(found[1]) != JAVA:
        text = f"{line}; Minecraft needs Java {JAVA}, found first on PATH: {GUIDE}"
        return Finding(level=Level.PROBLEM, subject="java", text=text)
    return Finding(level=Level.OK, subject="java", text=line)


def _display(packages: Mapping[str, str]) -> Iterator[Finding]:
    """MineRL needs `DISPLAY` or an Xvfb that we start; MineStudio starts `xvfb-run` itself."""
    if MINERL in packages:
        if display := os.environ.get("DISPLAY"):
            yield Finding(level=Level.OK, subject="display", text=f"DISPLAY is {display}")
        elif xvfb := shutil.which("Xvfb"):
            yield Finding(level=Level.OK, subject="display", text=f"none; each environment starts {xvfb}")
        else:
            text = "DISPLAY is not set and there is no Xvfb; `apt install xvfb`"
            yield Finding(level=Level.PROBLEM, subject="display", text=text)
    if MINESTUDIO in packages and shutil.which("xvfb-run") is None:
        text = "MineStudio starts its engine by xvfb-run, and there is none; `apt install xvfb`"
        yield Finding(level=Level.PROBLEM, subject="display", text=text)


def _engine(package: str, jar: Path, advice: str) -> Finding:
    if jar.is_file():
        return Finding(level=Level.OK, subject=f"{package}'s engine", text=str(jar))
    text = f"there is no {jar}; {advice}: {GUIDE}"
    return Finding(level=Level.PROBLEM, subject=f"{package}'s engine", text=text)
