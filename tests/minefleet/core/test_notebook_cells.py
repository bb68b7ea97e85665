import subprocess
import sys
from pathlib import Path

import pytest

from minefleet.core.notebook_cells import source_of

CELLS = [
    "",
    "import os.path\nimport json as data",
    "import os.path\nUNRELATED = print('ran again')",
    "SIZE = 1\nSIZE += 2\nOPTIONS = {'a': 1}\nOPTIONS['b'] = SIZE",
    "class Base:\n    size = SIZE\n",
    "def make():\n    return no_such_name\n",
    "this is no Python",
    "class Derived(Base):\n    UNRELATED = 5\n    def get(self):\n"
    "        return data.dumps([self.size, OPTIONS, os.path.sep, self.UNRELATED])\n"
    "class Broken:\n    x = no_such_name\n",
    "def make():\n    return Derived().get()",
    "make()",
]


def result_of(cells: list[str], name: str) -> object:
    scope: dict[str, object] = {}
    exec(source_of(cells, name), scope)
    function = scope[name]
    assert callable(function)
    return function()


def test_a_function_comes_with_all_that_it_needs_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert result_of(CELLS, "make") == '[3, {"a": 1, "b": 3}, "/", 5]'
    assert capsys.readouterr().out == ""


def test_notebook_name_has_its_last_definition(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ["x = print('once')", "x = 1", "x += 1", "def f():\n    return x", "x = 5", "def f():\n    return [x]"]
    assert result_of(cells, "f") == [5]
    assert capsys.readouterr().out == ""


def test_notebook_name_that_a_block_binds_is_found() -> None:
    cells = [
        "try:\n    import nothing_like_it as math\nexcept ImportError:\n    import math",
        "f = lambda: math.sqrt(9)",
    ]
    assert result_of(cells, "f") == 3


def test_notebook_functions_that_call_each_other_are_found() -> None:
    cells = ["def f(n=4):\n    return n and g(n - 1)", "def g(n):\n    return n and f(n - 1)"]
    assert result_of(cells, "f") == 0


PROGRAM = """
import sys
from pathlib import Path
from minefleet.core.function_references import load, reference_of

def make():
    from beside_the_notebook import VALUE
    return VALUE

In = ["", "def make():\\n    from beside_the_notebook import VALUE\\n    return VALUE"]
reference = reference_of(make, Path("run"))
print(reference, load(reference)(), load(reference).__module__ != "__main__")
"""


def test_a_function_of_a_cell_is_named_by_a_file_that_finds_the_modules_beside_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "beside_the_notebook.py").write_text("VALUE = 7")
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=PROGRAM, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run/notebook_make.py:make 7 True\n"
