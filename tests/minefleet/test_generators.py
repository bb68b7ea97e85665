from pathlib import Path

import pytest

from minefleet.errors import ConfigError
from minefleet.generators import load


def test_a_function_is_found_in_a_module() -> None:
    assert load("math:sqrt")(9) == 3


def test_a_function_is_found_in_a_file_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 7\n")
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import VALUE\n\ndef make():\n    return VALUE\n")
    assert load(f"{tmp_path}/mine.py:make")() == 7


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("sqrt", "module:function"),
        ("math:squareroot", "no function 'squareroot'"),
        ("no_such_module_at_all:f", "cannot import"),
        ("nowhere/at_all.py:f", "no file"),
    ],
)
def test_a_reference_that_leads_nowhere_says_what_is_missing(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(reference)
