import subprocess
import sys
from pathlib import Path

import pytest

from minefleet.cli import COMMANDS, make_parser
from minefleet.cli.epilogs import COMMON_KEYS
from minefleet.config.key_docs import key_docs

HEAVY = ("grpc", "numpy", "omegaconf", "rich", "torch")
HELP = f"""
import sys
from minefleet.cli import main
try:
    main([*sys.argv[1:], "--help"])
except SystemExit:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def help_of(*command: str) -> tuple[str, str]:
    """The help that a command prints, and the heavy modules that it was printed with."""
    done = subprocess.run([sys.executable, "-c", HELP, *command], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command: str) -> None:
    text, heavy = help_of(command)
    assert text.startswith(f"usage: minefleet {command}") and heavy == "[]\n"


def test_help_of_train_shows_the_common_keys_with_their_defaults() -> None:
    text, _ = help_of("train")
    defaults = {key.path: key.default for key in key_docs()}
    for path in " ".join(COMMON_KEYS.values()).split():
        assert f"  {path}={defaults[path]} " in text


@pytest.mark.parametrize(
    ("action", "part"),
    [
        ("config explain", "[KEY] [CONFIG key=value ...]"),
        ("replay why-dropped", "--stream S"),
        ("parameters export", "DIR [RUN_DIR]"),
        ("certs issue", "DIR ROLE"),
    ],
)
def test_help_of_an_action_shows_its_own_arguments(action: str, part: str) -> None:
    text, heavy = help_of(*action.split())
    assert text.startswith(f"usage: minefleet {action}") and part in text and heavy == "[]\n"


def test_help_without_a_command_imports_nothing_heavy() -> None:
    text, heavy = help_of()
    assert all(f"    {command}" in text for command in COMMANDS) and heavy == "[]\n"


@pytest.mark.parametrize(
    "words",
    ["eval --sample runs/x --episodes 3", "eval runs/x --episodes 3 --sample", "eval --episodes 3 --sample runs/x"],
)
def test_words_and_options_may_come_in_any_order(words: str) -> None:
    given = make_parser().parse_args(words.split())
    assert (given.checkpoint, given.episodes, given.sample) == (Path("runs/x"), 3, True)


def test_the_words_of_an_action_may_stand_between_its_options() -> None:
    given = make_parser().parse_args("replay export --json out --limit 2 run --stream s".split())
    assert (given.target, given.run_dir, given.limit, given.stream) == (Path("out"), Path("run"), 2, "s")
