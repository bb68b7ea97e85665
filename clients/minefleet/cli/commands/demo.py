"""`minefleet demo`: three minutes of Crafter, and what became of them."""

import argparse
import json
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from minefleet.cli.commands.evaluate import MODULE
from minefleet.cli.commands.train import finish, train_fleet
from minefleet.cli.output.readable_text import from_here, program
from minefleet.config.load import load
from minefleet.core.child_process_start import PYTHON
from minefleet.core.errors import ConfigError
from minefleet.launch.fork_server import ForkServer
from minefleet.launch.run_directory_setup import prepare
from minefleet.launch.run_lock import holding
from minefleet.monitoring.plot import CURVE_FILE
from minefleet.runs.checkpoint_files import newest
from minefleet.runs.default_run_directory import fresh_directory

PRESET = "crafter"
EPISODES = 20


def run(arguments: argparse.Namespace) -> int:
    """Trains, evaluates before and after, and says what to try next."""
    named = arguments.run_dir
    with nullcontext(named) if named else fresh_directory("demo") as directory, closing(ForkServer()) as forks:
        config = load(PRESET, ["stop.env_steps=0", f"stop.minutes={arguments.minutes}"])
        prepared = prepare(config, directory, forks.start)
        with holding(prepared.directory):
            outcome = train_fleet(prepared, forks.start)
    checkpoint = newest(prepared.checkpoints)
    if outcome.ending.stopped_by != "learner" or checkpoint is None:
        return finish(prepared, outcome)
    print(f"\nplaying {EPISODES} episodes before and after ...", file=sys.stderr)
    before, after = (evaluate(checkpoint, prepared.directory / "videos", how) for how in ("--random", "--sample"))
    print(story(prepared.directory, before, after, program()))
    return 0


def evaluate(checkpoint: Path, videos: Path, how: str) -> dict[str, Any]:
    """Plays some episodes in a process of its own, and films one.

    Raises:
        ConfigError: If the evaluation failed.
    """
    command = [*PYTHON, MODULE, str(checkpoint), "--episodes", str(EPISODES), "--json", how]
    done = subprocess.run([*command, "--video", str(videos)], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise ConfigError(f"the evaluation ended with exit code {done.returncode}; its words are above")
    return json.loads(done.stdout)  # type: ignore[no-any-return]  # JSON has no types.


def story(directory: Path, before: dict[str, Any], after: dict[str, Any], name: str = "minefleet") -> str:
    """Describes the results, and the next commands to try, with the program's name as the shell finds it."""
    shown = from_here(directory)
    return f"""
return      {after["return_mean"]:.2f} after training, {before["return_mean"]:.2f} of a random policy
curve       {shown / CURVE_FILE}
before      {before["video"]}
after       {after["video"]}

Try next:
    {name} train --resume {shown} stop.minutes=30
    {name} eval {shown} --episodes 20 --sample
    {name} train cartpole"""
