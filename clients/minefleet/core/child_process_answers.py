"""Questions to a child process, for whatever imports heavy packages or somebody else's code.

The parent calls `ask(module, ...)`; the child, `python -m module ...`, calls `reply(work)`. The answer travels as JSON
through a file of its own, which whatever the child prints cannot spoil, and in memory, which a full disk cannot.
"""

import json
import os
from collections.abc import Callable
from typing import Any, BinaryIO

from minefleet.core.child_process_start import PYTHON, Start, file_in_memory, start_fresh
from minefleet.core.errors import ConfigError, EnvFailedError
from minefleet.core.immediate_process_exit import exit_at_once
from minefleet.core.parent_death import tied
from minefleet_env.errors import in_one_line

ANSWER_VARIABLE = "MINEFLEET_ANSWER_FD"


def ask(module: str, *arguments: str, start: Start = start_fresh) -> dict[str, Any]:
    """Runs a module in a child process and returns its answer. What the child prints is dropped.

    Raises:
        EnvFailedError: If the child raised it.
        ConfigError: If the child failed otherwise; with its reason in one line.
    """
    command = [*PYTHON, module, *arguments]
    with file_in_memory() as file, file_in_memory() as output:
        descriptors = {ANSWER_VARIABLE: file.fileno()}
        process = start(command, os.environ | tied(), output.fileno(), descriptors=descriptors)
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        answer, last_word = read_answer(file), read_last_line(output)
    if "result" in answer:
        return answer["result"]  # type: ignore[no-any-return]  # JSON has no types.
    if "env_failure" in answer:
        raise EnvFailedError(answer["env_failure"])
    raise ConfigError(answer.get("error", f"{module} ended with exit code {code}: {last_word}"))


def read_answer(file: BinaryIO) -> dict[str, Any]:
    """The JSON that a child has written; nothing where it wrote none, or died over it."""
    file.seek(0)
    try:
        return dict(json.load(file))
    except ValueError:
        return {}


def read_last_line(output: BinaryIO) -> str:
    """The last line that a child has printed."""
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def reply(work: Callable[[], dict[str, Any]]) -> None:
    """Answers the parent with the result and exits, or with the reason why there is none and raises."""
    try:
        _write({"result": work()})
        exit_at_once(0)
    except EnvFailedError as error:
        _write({"env_failure": str(error)})
        raise
    except ConfigError as error:
        _write({"error": str(error)})
        raise
    except Exception as error:
        _write({"error": in_one_line(error)})
        raise


def _write(answer: dict[str, Any]) -> None:
    with os.fdopen(int(os.environ[ANSWER_VARIABLE]), "w") as file:
        json.dump(answer, file)
