import subprocess
import sys

import pytest

from minefleet.cli import COMMANDS
from minefleet.cli.arguments import COMMON_KEYS
from minefleet.config.key_docs import key_docs

HEAVY = ("grpc", "numpy", "omegaconf", "rich", "torch")
HELP = f"""
import sys
from minefleet.cli import main
try:
    main([sys.argv[1], "--help"])
except SystemExit:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def help_of(command: str) -> tuple[str, str]:
    """The help that a command prints, and the heavy modules that it was printed with."""
    done = subprocess.run([sys.executable, "-c", HELP, command], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command: str) -> None:
    text, heavy = help_of(command)
    assert text.startswith(f"usage: minefleet {command}") and heavy == "[]\n"


def test_help_of_train_shows_the_common_keys_with_their_defaults() -> None:
    text, _ = help_of("train")
    defaults = {key.path: key.default for key in key_docs()}
    for path in COMMON_KEYS:
        assert f"  {path}={defaults[path]}\n" in text
