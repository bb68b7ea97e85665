"""The real MineStudio and the real MineRL over the stand-in engine: what they show and count, and how they fail."""

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.engine.prepared import Prepared

DRIVERS = Path(__file__).parent / "drivers"


def drive(prepared: Prepared, driver: str, what: str, directory: Path, **faults: str) -> dict[str, Any]:
    """Runs a driver and returns what it tells; into files, since what it leaves behind would keep pipes open."""
    command = [prepared.python, "-W", "ignore", str(DRIVERS / driver), what]
    told, errors = directory / "told", directory / "errors"
    with told.open("w") as out, errors.open("w") as err:
        code = subprocess.call(command, env=prepared.environ(**faults), cwd=directory, stdout=out, stderr=err)
    assert code == 0, errors.read_text()
    return dict(json.loads(told.read_text().splitlines()[-1]))


def test_minestudio_plays_pays_for_kills_obeys_commands_and_resets_fast(
    minestudio_engine: Prepared, tmp_path: Path
) -> None:
    told = drive(minestudio_engine, "drive_minestudio.py", "hunt", tmp_path)
    for episode in (told["first"], told["second"]):
        assert episode["steps"] == 100
        assert episode["paid"] == episode["killed"] > 0
        assert episode["held"] == "iron_sword"
        assert episode["voxels"] == ["grass_block", "obsidian"]
        assert episode["pictures"] > 40
    assert told["first"]["start"] != told["second"]["start"]
    assert minestudio_engine.engines() == []


FAULTS = [
    ({"ENGINE_CRASH_AT": "60"}, "TypeError", ""),
    ({"ENGINE_HANG_AT": "60"}, "TypeError", ""),
    ({"ENGINE_GARBAGE_AT": "60"}, "error", "unpack"),
    ({"ENGINE_DIE_AT_START": "no display"}, "EOFError", "no display"),
]


@pytest.mark.parametrize(("faults", "raised", "says"), FAULTS)
def test_an_engine_that_fails_makes_minestudio_raise(
    minestudio_engine: Prepared, tmp_path: Path, faults: dict[str, str], raised: str, says: str
) -> None:
    told = drive(minestudio_engine, "drive_minestudio.py", "steps", tmp_path, **faults)
    assert told["raised"] == raised
    assert says in told["says"]
    assert told["steps"] < 60


def test_an_engine_that_starts_slowly_and_leaks_plays_all_the_same(minestudio_engine: Prepared, tmp_path: Path) -> None:
    told = drive(minestudio_engine, "drive_minestudio.py", "steps", tmp_path, ENGINE_START_S="2", ENGINE_LEAK_MB="1")
    assert told == {"steps": 200}
    (engine,) = minestudio_engine.engines()
    assert engine.memory_info().rss > 200 * 2**20


def test_minerl_plays_and_counts(minerl_engine: Prepared, tmp_path: Path) -> None:
    told = drive(minerl_engine, "drive_minerl.py", "survive", tmp_path)
    assert told == {
        "pictures": 61,
        "shape": [360, 640, 3],
        "walked": True,
        "mined": told["dirt"],
        "dirt": told["dirt"],
        "alive": True,
    }
    assert told["dirt"] > 0
    assert minerl_engine.engines() == []


@pytest.mark.parametrize("fault", ["ENGINE_CRASH_AT", "ENGINE_HANG_AT"])
def test_an_engine_that_fails_makes_minerl_show_something_made_up_and_say_so(
    minerl_engine: Prepared, tmp_path: Path, fault: str
) -> None:
    told = drive(minerl_engine, "drive_minerl.py", "steps", tmp_path, **{fault: "60"})
    assert told == {"steps": 59, "info": {"error": "Connection timed out!"}}


def test_engine_told_to_hang_is_stopped_and_still_there(minerl_engine: Prepared, tmp_path: Path) -> None:
    drive(minerl_engine, "drive_minerl.py", "steps", tmp_path, ENGINE_HANG_AT="5")
    assert [engine.status() for engine in minerl_engine.engines()] == [psutil.STATUS_STOPPED]
