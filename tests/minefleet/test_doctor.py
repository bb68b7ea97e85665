"""`minefleet doctor` finds faults, with programs of ours in place of Java, of drivers and of interpreters."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minefleet.config import FleetConfig
from minefleet.config.load import load, merge
from minefleet.doctor import Finding, Level, examine

MINERL = {"numpy": "1.23.5", "gym": "0.23.1", "opencv-python": "4.8.0", "minerl": "1.0.0"}
MINESTUDIO = {"numpy": "1.26.4", "gym": "0.26.2", "minestudio": "1.1.6"}
JAVA_8 = 'openjdk version "1.8.0_392"'
JAR = Path("build", "libs", "mcprec-6.13.jar")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found. There is no display."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("DISPLAY", "MINESTUDIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    return folder


def install(path: Path, name: str, says: str) -> Path:
    """Puts a program there that prints a text."""
    (path / name).write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{says}\nEND\n")
    (path / name).chmod(0o755)
    return path / name


def interpreter(path: Path, packages: dict[str, str]) -> str:
    """An interpreter that has these packages; MineRL's lies in the folder `minerl` there."""
    found = {"python": [3, 10, 2], "packages": packages, "minerl": str(path / "minerl")}
    return str(install(path, "other-python", json.dumps(found)))


def config(python: str = "", **keys: str) -> FleetConfig:
    return merge({}, "a test", [f"env.python={python}", *(f"{key}={value}" for key, value in keys.items())])


def found(subject: str, settings: FleetConfig, **places: Path) -> list[Finding]:
    """The findings of a subject."""
    return [each for each in examine(settings, Path.cwd(), **places) if each.subject == subject]


def only(findings: list[Finding], level: Level, *parts: str) -> None:
    """Asserts that there is one finding, of this level, that says all parts."""
    assert [each.level for each in findings] == [level], findings
    assert all(part in findings[0].text for part in parts), findings[0].text


def test_the_fleet_and_its_interpreter_are_named() -> None:
    only(found("fleet", config()), Level.OK, "torch", "gymnasium")
    only(found("python", config()), Level.OK, sys.executable, "numpy")


def test_doctor_without_a_minecraft_package_asks_for_neither_java_nor_a_display(path: Path) -> None:
    findings = list(examine(config(interpreter(path, {"numpy": "1.19.0"})), Path.cwd()))
    assert not {"java", "display"} & {each.subject for each in findings}
    assert Level.PROBLEM not in {each.level for each in findings}


@pytest.mark.parametrize(
    ("says", "level", "part"),
    [
        (JAVA_8, Level.OK, "1.8.0_392"),
        ('openjdk version "17.0.15" 2025-04-15', Level.PROBLEM, "needs Java 8"),
        ('java version "11.0.2"', Level.PROBLEM, "needs Java 8"),
        ("no such thing", Level.PROBLEM, "needs Java 8"),
    ],
)
def test_doctor_accepts_java_8_only(path: Path, says: str, level: Level, part: str) -> None:
    install(path, "java", says)
    only(found("java", config(interpreter(path, MINERL))), level, part)


def test_a_java_that_is_missing_is_a_problem(path: Path) -> None:
    only(found("java", config(interpreter(path, MINERL))), Level.PROBLEM, "there is none")


def test_minerl_needs_a_display_or_an_xvfb(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(interpreter(path, MINERL))
    only(found("display", settings), Level.PROBLEM, "apt install xvfb")
    install(path, "Xvfb", "")
    only(found("display", settings), Level.OK, "each environment starts")
    monkeypatch.setenv("DISPLAY", ":3")
    only(found("display", settings), Level.OK, ":3")


def test_minestudio_needs_xvfb_run(path: Path) -> None:
    settings = config(interpreter(path, MINESTUDIO))
    only(found("display", settings), Level.PROBLEM, "xvfb-run")
    install(path, "xvfb-run", "")
    assert found("display", settings) == []


@pytest.mark.parametrize("package", ["minerl", "minestudio"])
def test_an_engine_is_looked_for_where_its_package_does(
    path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINESTUDIO_DIR", str(path / "studio"))
    folder = {"minerl": path / "minerl" / "MCP-Reborn", "minestudio": path / "studio" / "engine"}[package]
    settings = config(interpreter(path, {"minerl": MINERL, "minestudio": MINESTUDIO}[package]))
    only(found(f"{package}'s engine", settings), Level.PROBLEM, str(folder / JAR))
    (folder / JAR).parent.mkdir(parents=True)
    (folder / JAR).touch()
    only(found(f"{package}'s engine", settings), Level.OK, str(folder / JAR))


@pytest.mark.parametrize(
    ("packages", "subject", "part"),
    [
        (MINERL | {"minerl": "0.4.4"}, "minerl", "0.4.4 is another Minecraft"),
        (MINERL | {"numpy": "1.26.4"}, "minerl", "numpy 1.26.4; install one below 1.24"),
        (MINERL | {"gym": "0.26.2"}, "minerl", "gym 0.26.2; install one below 0.24"),
        (MINESTUDIO | {"numpy": "2.0.1"}, "minestudio", "numpy 2.0.1; install one below 2.0"),
        ({"gym": "0.23.1"}, "env.python", "has no NumPy"),
        ({name: MINERL[name] for name in MINERL if name != "gym"}, "minerl", "lacks gym"),
        ({name: MINERL[name] for name in MINERL if "opencv" not in name}, "minerl", "lacks OpenCV; install opencv"),
    ],
)
def test_packages_that_do_not_work_together_are_named(
    path: Path, packages: dict[str, str], subject: str, part: str
) -> None:
    only(found(subject, config(interpreter(path, packages))), Level.PROBLEM, part)


def test_an_environment_of_minerl_in_an_interpreter_without_it_is_a_problem(path: Path) -> None:
    settings = load("minecraft-vpt", [f"env.python={interpreter(path, {'numpy': '1.23.5'})}"])
    only(found("minerl", settings), Level.PROBLEM, "name an interpreter that has by env.python")


def test_a_java_that_does_not_answer_is_not_called_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(path, "java", "")
    (path / "java").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setattr("minefleet.doctor.minecraft_checks.JAVA_ANSWERS_S", 0.1)
    only(found("java", config(interpreter(path, MINERL))), Level.PROBLEM, "does not answer")


def test_an_interpreter_that_is_none_is_a_problem(path: Path) -> None:
    only(found("env.python", config("/nowhere/python")), Level.PROBLEM, "No such file")
    python = install(path, "old-python", "SyntaxError: invalid syntax")
    only(found("env.python", config(str(python))), Level.PROBLEM, "it said SyntaxError")


def test_a_gpu_that_torch_cannot_use_is_a_problem(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    only(found("gpu", config()), Level.WARNING, "none")
    install(path, "nvidia-smi", "GPU 0: NVIDIA A100 (UUID: GPU-1)")
    only(found("gpu", config()), Level.PROBLEM, "the driver has 1")


def test_a_disk_without_room_for_replay_is_a_problem() -> None:
    key = "rollout_config.replay_buffer_config.max_bytes"
    only(found("disk", config(**{key: str(2**20)})), Level.OK, "free at")
    only(found("disk", config(**{key: str(10**16)})), Level.PROBLEM, f"lower {key}")


def test_little_shared_memory_is_a_warning(tmp_path: Path) -> None:
    only(found("shared memory", config(), shared_memory=tmp_path / "none"), Level.WARNING, "--shm-size")


def test_a_port_in_use_is_a_problem() -> None:
    only(found("ports", config()), Level.OK, "127.0.0.1:")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        findings = found("ports", config(**{"services.learner.address": address}))
    only(findings, Level.PROBLEM, "services.learner.address", "Address already in use")


def test_few_open_files_are_a_warning_and_a_problem_is_exit_code_1(tmp_path: Path) -> None:
    doctor = f"ulimit -n 1000; exec {sys.executable} -m minefleet doctor"
    done = subprocess.run(["sh", "-c", doctor], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning open files: at most 1000 per process" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "minefleet", "doctor", "env.python=/nowhere/python"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "problem env.python: /nowhere/python cannot be started" in done.stdout


def test_doctor_runs_no_python_file_of_the_user(tmp_path: Path) -> None:
    for name in ("numpy.py", "mine.py"):
        (tmp_path / name).write_text("open('ran', 'w')\nonline_dict = {'seed': 1}\n")

    def doctor(argument: str) -> int:
        variables = dict(os.environ, PYTHONSAFEPATH="1")
        return subprocess.run(
            [sys.executable, "-m", "minefleet", "doctor", argument], cwd=tmp_path, env=variables, check=False
        ).returncode

    assert doctor("mine.py") == 2
    assert doctor(f"env.python={sys.executable}") == 0
    assert not (tmp_path / "ran").exists()
