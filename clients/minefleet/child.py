"""Questions to a child process, for whatever imports heavy packages or somebody else's code.

The parent calls `ask(module, ...)`; the child, `python -m module ...`, calls `reply(work)`. The answer travels as JSON
through a file without a name, so that whatever the child prints cannot spoil it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from minefleet.errors import ConfigError, EnvFailedError
from minefleet.lifeline import tied
from minefleet_worker.errors import in_one_line

ANSWER_VARIABLE = "MINEFLEET_ANSWER_FD"


def ask(module: str, *arguments: str) -> dict[str, Any]:
    """Runs a module in a child process and returns its answer. What the child prints is dropped.

    Raises:
        EnvFailedError: If the child raised it.
        ConfigError: If the child failed otherwise; with its reason in one line.
    """
    with tempfile.TemporaryFile() as file:
        descriptor = file.fileno()
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=os.environ | tied() | {ANSWER_VARIABLE: str(descriptor)},
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        file.seek(0)
        answer = json.loads(file.read() or b"{}")
    if "result" in answer:
        return answer["result"]  # type: ignore[no-any-return]  # JSON has no types.
    if "env_failure" in answer:
        raise EnvFailedError(answer["env_failure"])
    last_line = (done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    raise ConfigError(answer.get("error", f"{module} ended with exit code {done.returncode}: {last_line}"))


def reply(work: Callable[[], dict[str, Any]]) -> None:
    """Answers the parent with the result, or with the reason why there is none."""
    try:
        _write({"result": work()})
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
