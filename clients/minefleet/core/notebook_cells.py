"""Functions that were typed into a notebook, as files that other processes import.

A file has the statements of the cells that its function needs: definitions, imports and assignments. So nothing is
pickled, nothing is sent, and a run is resumed and evaluated without its notebook. Calls at the top of a cell are not
among them: a list that they fill is empty there.
"""

import ast
import dis
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

CELLS = "In"
"""Under this name IPython keeps the cells that were run, in its `__main__`."""


class Statement(NamedTuple):
    """A statement at the top of a cell, with the global names that it is about."""

    node: ast.stmt
    binds: set[str]
    assigns: set[str]
    """Those that it binds or assigns into, as in `x[0] = 1`."""
    reads: set[str]


def source_of(cells: Sequence[str], name: str) -> str:
    """The source of a name and of all that it needs, in the order of the cells."""
    statements = [statement for cell in cells for statement in _statements(cell)]
    wanted, chosen = [name], set[int]()
    while wanted:
        new = _makers(statements, wanted.pop()) - chosen
        chosen |= new
        wanted += [read for number in new for read in statements[number].reads]
    # Modules beside the notebook are found by its folder.
    lines = ["import sys", f"sys.path.append({str(Path.cwd())!r})"]
    return "\n".join([*lines, *(ast.unparse(statements[number].node) for number in sorted(chosen)), ""])


def _makers(statements: Sequence[Statement], name: str) -> set[int]:
    """Numbers of a name's last binding, of the assignments into it since, and, as `import a.b` adds to `a`, imports."""
    last = max((number for number, each in enumerate(statements) if name in each.binds), default=0)
    found = {number for number, each in enumerate(statements) if name in each.assigns}
    return {number for number in found if number >= last or isinstance(statements[number].node, ast.Import)}


def _statements(cell: str) -> Iterator[Statement]:
    try:
        nodes = ast.parse(cell).body
    except SyntaxError:  # Such a cell has not run.
        return
    for node in nodes:
        code = compile(ast.Module([node], []), CELLS, "exec", dont_inherit=True)
        stores = set(_names(code, "STORE"))
        targets = getattr(node, "targets", [getattr(node, "target", ast.Pass())])
        within = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        binds = set() if isinstance(node, ast.AugAssign) else stores
        yield Statement(node, binds, stores | within, set(_names(code, "LOAD")))


def _names(code: CodeType, action: str) -> Iterator[str]:
    """The global names that code stores, or that it and the functions in it load."""
    yield from (
        step.argval for step in dis.get_instructions(code) if step.opname in (f"{action}_NAME", f"{action}_GLOBAL")
    )
    if action == "LOAD":
        for inner in code.co_consts:
            yield from _names(inner, action) if isinstance(inner, CodeType) else ()
