"""What the actor and the learner of the history tests share: the command line, the history, how they are stopped."""

import argparse
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tests.history.record import Recorder

from minefleet.lifeline import die_with_launcher
from minefleet.run import Run, read_run
from minefleet.weights.manifest import describe
from minefleet_runtime.logs import set_up_logging
from minefleet_runtime.signals import stop_on_signal

RUN_ID = "history"

EXIT_FENCED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a driver works with."""

    run: Run
    name: str
    """Of this incarnation."""
    rng: Random
    recorder: Recorder
    stopping: threading.Event


def set_up() -> Setting:
    """Reads the command line, begins the history, and ties this process to its launcher."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", required=True)
    arguments = parser.parse_args()
    set_up_logging(arguments.name, "INFO")
    die_with_launcher()
    stopping = threading.Event()
    stop_on_signal(stopping)
    return Setting(
        run=read_run(arguments.run_dir),
        name=arguments.name,
        rng=Random(arguments.seed),
        recorder=Recorder(arguments.history),
        stopping=stopping,
    )


def weights(version: int) -> dict[str, NDArray[np.float32]]:
    """A policy."""
    return {"weight": np.full(4, version, np.float32)}


def architecture() -> str:
    """Its fingerprint."""
    return describe(weights(0))[0].architecture_fingerprint
