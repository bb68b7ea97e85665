import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from minefleet.core.errors import ConfigError
from minefleet.core.function_references import load, reference_of
from minefleet.rpc.codec import encode


def test_load_of_a_reference_finds_a_function_of_a_module() -> None:
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
def test_load_of_a_reference_that_leads_nowhere_says_what_is_missing(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(reference)


def run_in(folder: Path, code: str) -> str:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_load_of_a_file_prefers_the_package_beside_it_to_an_installed_one(tmp_path: Path) -> None:
    (tmp_path / "lz4").mkdir()
    (tmp_path / "lz4" / "__init__.py").touch()
    (tmp_path / "fork.py").write_text("def place():\n    import lz4\n    return lz4.__file__\n")
    code = f"from minefleet.core.function_references import load; print(load('{tmp_path}/fork.py:place')())"
    assert run_in(Path("/"), code) == f"{tmp_path}/lz4/__init__.py"


def test_load_of_a_file_gives_it_a_name_that_a_spawned_child_can_import(tmp_path: Path) -> None:
    (tmp_path / "spawner.py").write_text(
        "import multiprocessing\n\ndef double(x):\n    return 2 * x\n\n"
        "def make():\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        return pool.apply(double, (21,))\n"
    )
    code = f"from minefleet.core.function_references import load; print(load('{tmp_path}/spawner.py:make')())"
    assert run_in(Path("/"), code) == "42"


def test_load_of_two_files_of_one_name_imports_both(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "twin.py").write_text(f"def make():\n    return {number}\n")
    assert [load(f"{tmp_path}/{number}/twin.py:make")() for number in (1, 2)] == [1, 2]


def test_load_of_a_module_finds_it_in_the_current_folder_after_all_others(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('it shadows the library')\n")
    (tmp_path / "just_here.py").write_text("import colorsys\n\ndef make():\n    return 5\n")
    assert (
        run_in(tmp_path, "from minefleet.core.function_references import load; print(load('just_here:make')())") == "5"
    )


def test_a_function_is_named_by_its_file_and_found_again(tmp_path: Path) -> None:
    (tmp_path / "mine_too.py").write_text("def make():\n    return 8\n")
    code = "import mine_too, minefleet.core.function_references as f; print(f.reference_of(mine_too.make))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/mine_too.py:make"
    assert load(done.stdout.strip())() == 8


def test_a_function_of_a_package_is_named_by_its_module() -> None:
    assert reference_of(encode) == "minefleet.rpc.codec:encode"


def test_a_function_of_the_program_itself_is_found_by_its_file(tmp_path: Path) -> None:
    text = "import minefleet.core.function_references as f\n\ndef make():\n    pass\n\nprint(f.reference_of(make))\n"
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/program.py:make"


def test_user_code_that_no_other_process_can_import_is_refused() -> None:
    def inner() -> None:
        pass

    for function in (inner, lambda: None, partial(load)):
        with pytest.raises(ConfigError, match="cannot be found by file and name: define it with `def`"):
            reference_of(function)


def test_reference_of_a_function_that_lies_in_no_file_is_refused() -> None:
    text = "from minefleet.core.function_references import reference_of\ndef make():\n    pass\nreference_of(make)\n"
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, check=False)
    assert "make was typed in and lies in no file" in done.stderr
