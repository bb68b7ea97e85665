"""Deaths of environments, by their causes."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from minefleet.monitoring.env_death_groups import cause_of, group_of, read_deaths
from minefleet_env.process_messages import FOR_MEMORY


def trace(fail: Callable[[], object]) -> str:
    try:
        fail()
    except (ArithmeticError, LookupError, MemoryError, SystemExit):
        return f"environment process 7, slot 0: {traceback.format_exc()}"
    raise AssertionError("nothing was raised")


def divide() -> None:
    1 / 0  # noqa: B018


def chain() -> None:
    try:
        divide()
    except ZeroDivisionError as error:
        raise KeyError("several\nlines: of text") from error


def exhaust() -> None:
    raise MemoryError


HERE, LINE = Path(__file__).name, divide.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("kind", "text", "group"),
    [
        ("exception", trace(divide), f"ZeroDivisionError@{HERE}:{LINE}"),
        ("exception", trace(chain), f"KeyError@{HERE}:{chain.__code__.co_firstlineno + 4}"),
        ("exception", trace(lambda: sys.exit(3)), f"SystemExit@{HERE}:{sys._getframe().f_lineno}"),
        ("exception", trace(exhaust), "memory"),
        ("memory", "environment process 7, slot 0: it takes 9 bytes", "memory"),
        ("exit", f"environment process 7, slots 0-1: it was ended by SIGKILL, {FOR_MEMORY}", "memory"),
        ("error", f"environment process 7, slot 0: Minecraft is gone\nit was ended by SIGKILL, {FOR_MEMORY}", "memory"),
        ("exit", "environment process 7, slots 0-1: it was ended by SIGKILL", "SIGKILL"),
        ("exit", "environment process 7, slot 0: it exited with code 7", "exit:7"),
        ("hang", "environment process 7, slot 12: STEP took longer than 60 s", "hang:STEP"),
        ("contract", "observation 'count' must be finite, got [nan  1.]", "contract:observation-count-must-be-finite"),
        ("error", "the environment reports an error: port 4711", "error:the-environment-reports-an-error:-port-N"),
    ],
)
def test_group_of_a_failure_names_its_cause(kind: str, text: str, group: str) -> None:
    assert group_of(kind, text) == group


def test_cause_of_kills_whose_memory_has_grown_is_memory() -> None:
    flat, grown = {"rss_bytes": [10, 11, 11, 11]}, {"rss_bytes": [10, 11, 20, 40]}
    assert cause_of("SIGKILL", [flat, flat, grown]) == "something outside kills its process"
    assert cause_of("SIGKILL", [flat, grown, grown]) == "it runs out of memory, which grows while it plays"


def test_read_deaths_of_garbage_leaves_it_out(tmp_path: Path) -> None:
    assert read_deaths(tmp_path) == []
    for name, content in {
        "a": b"",
        "b": b"\xff\x00",
        "c": b"[]",
        "d": b'{"actor": "actor-0"}',
        "e": b"{" * 9999,
    }.items():
        (tmp_path / "deaths" / name).mkdir(parents=True)
        (tmp_path / "deaths" / name / "death.json").write_bytes(content)
    (tmp_path / "deaths" / "file").touch()
    (tmp_path / "deaths" / "f" / "death.json").mkdir(parents=True)
    assert read_deaths(tmp_path) == []
