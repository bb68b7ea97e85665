import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from minefleet.core.errors import ConfigError
from minefleet.core.user_code import load, reference_of
from minefleet.rpc.codec import encode


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
        ("math:squareroot", "no 'squareroot'"),
        ("no_such_module_at_all:f", "cannot import"),
        ("nowhere/at_all.py:f", "no file"),
    ],
)
def test_a_reference_that_leads_nowhere_says_what_is_missing(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(reference)


def test_a_function_is_named_by_its_file_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "mine_too.py").write_text("def make():\n    return 8\n")
    code = "import mine_too; from minefleet.core.user_code import reference_of; print(reference_of(mine_too.make))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/mine_too.py:make"
    assert load(done.stdout.strip())() == 8


def test_a_function_of_a_package_is_named_by_its_module() -> None:
    assert reference_of(encode) == "minefleet.rpc.codec:encode"


def test_a_function_of_the_program_itself_is_found_by_its_file(tmp_path: Path) -> None:
    text = "from minefleet.core.user_code import reference_of\n\ndef make():\n    pass\n\nprint(reference_of(make))\n"
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/program.py:make"


def test_what_no_other_process_can_find_is_refused() -> None:
    def inner() -> None:
        pass

    for function in (inner, lambda: None, partial(load)):
        with pytest.raises(ConfigError, match="cannot be found by file and name: define it with `def`"):
            reference_of(function)


def test_a_function_that_was_typed_in_is_refused() -> None:
    text = "from minefleet.core.user_code import reference_of\ndef make():\n    pass\nreference_of(make)\n"
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, check=False)
    assert "make was typed in and lies in no file" in done.stderr
