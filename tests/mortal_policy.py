"""A policy with which rank 0 of a learner writes down what it trains on and publishes, and an actor by which versions
its slots play, and either dies where it is told to.

A file in the folder that `MINEFLEET_TEST_DEATHS` names is a death to come, called by one of `MOMENTS`; it is taken away
at that moment, so that the next one lives. One that says `fleet` is the death of the launcher, too, and so of all
roles; any other text is a key that must be among the settings of a version. `run_history.py` reads what is written
down.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from minefleet.config import PolicyConfig
from minefleet.core.schema import Schema
from minefleet.monitoring import rollback_requests
from minefleet.policies import Policy, build
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs import checkpoint_rollback
from minefleet_learner import collapse_pause, live_config, loop
from minefleet_learner.checkpoints.writer import CheckpointWriter
from minefleet_learner.data.prefetcher import Prefetcher
from minefleet_learner.data.sharded_replay import Shards
from minefleet_learner.iteration_commit import Publisher
from minefleet_learner.training.updater import Updater

WITNESS = "witness.jsonl"
"""In the run directory."""
MOMENTS: dict[str, tuple[Any, str]] = {
    "between publish and ack": (Prefetcher, "ack"),
    "between ack and checkpoint": (CheckpointWriter, "submit"),
    "before an answer": (live_config, "append"),
    "after an answer": (live_config, "append"),
    "before the iteration of an answer": (Updater, "configure"),
    "before a version with settings": (ParametersClient, "publish"),
    "rollback, before its line": (live_config, "answer_rollback"),
    "rollback, after its line": (loop.Learner, "send_ranks_home"),
    "rollback, before anything is set aside": (rollback_requests, "go_back"),
    "rollback, between two that are set aside": (checkpoint_rollback, "free_name"),
    "rollback, before its epoch": (ParametersClient, "open_epoch"),
    "rollback, before replay knows": (Shards, "send_position"),
    "before the line of a pause": (collapse_pause, "append"),
    "after the line of a pause": (collapse_pause, "append"),
}
"""Each is just before a function is called, or after it, where it says so."""
ACTOR_MOMENT = "before an actor follows settings"


def policy_generator(schema: Schema) -> Policy:
    """The default policy; rank 0 of a learner, or an actor, that makes it may be killed at each of its moments."""
    if (
        any(role in sys.argv[0] for role in ("minefleet_learner", "minefleet_serial"))
        and os.environ.get("RANK", "0") == "0"
    ):
        for name, (owner, method) in MOMENTS.items():
            setattr(owner, method, mortal(getattr(owner, method), Path(os.environ["MINEFLEET_TEST_DEATHS"], name)))
        Publisher.publish_first = witness_start(Publisher.publish_first)  # type: ignore[method-assign]
        Prefetcher.take = witness_take(Prefetcher.take)  # type: ignore[method-assign]
        ParametersClient.publish = witness_publish(ParametersClient.publish)  # type: ignore[method-assign]
    elif "minefleet_actor" in sys.argv[0]:
        from minefleet_actor import build as actor
        from minefleet_actor.inference.policy_runner import PolicyRunner
        from minefleet_actor.live_settings_update import follow_settings

        PolicyRunner.decide = witness_decide(PolicyRunner.decide)  # type: ignore[method-assign]
        actor.follow_settings = mortal(  # type: ignore[attr-defined]
            follow_settings, Path(os.environ["MINEFLEET_TEST_DEATHS"], ACTOR_MOMENT)
        )
    return build(PolicyConfig(), schema)


def mortal(method: Callable[..., Any], death: Path) -> Callable[..., Any]:
    """The method, or the death in its place, or after it, while that is to come."""

    @wraps(method)
    def call(*arguments: Any, **more: Any) -> Any:
        whose = death.read_text() if death.exists() else None
        if whose is not None and (whose == "fleet" or whose in more.get("settings", "")):
            death.unlink()
            if death.name.startswith("after"):
                method(*arguments, **more)
            if whose == "fleet":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **more)

    return call


def run_directory() -> Path:
    """Of this learner."""
    return Path(sys.argv[sys.argv.index("--run-dir") + 1])


def note(**row: Any) -> None:
    """Writes a line down."""
    with (run_directory() / WITNESS).open("a") as file:
        file.write(json.dumps({"time_s": time.time(), **row}) + "\n")


def witness_start(method: Callable[..., Any]) -> Callable[..., Any]:
    """Writes down which versions a start abandons."""

    def call(publisher: Publisher, *arguments: Any) -> Any:
        state = method(publisher, *arguments)
        position = publisher._position
        note(resumed=position.resumed_version, first=position.first_version, epoch=position.epoch)
        return state

    return call


def witness_take(method: Callable[..., Any]) -> Callable[..., Any]:
    """Writes down which versions acted what is trained on."""

    def call(*arguments: Any) -> Any:
        lease, batch = method(*arguments)
        note(acted=sorted(set(batch.policy_version[batch.mask].tolist())))
        return lease, batch

    return call


def witness_publish(method: Callable[..., Any]) -> Callable[..., Any]:
    """Writes down which version an iteration became, and which it promotes, 0 for itself."""

    def call(*arguments: Any, iteration: int, promoted: int, **more: Any) -> Any:
        version = method(*arguments, iteration=iteration, promoted=promoted, **more)
        note(published=version, iteration=iteration, promoted=promoted or version)
        return version

    return call


def witness_decide(method: Callable[..., Any]) -> Callable[..., Any]:
    """Writes down by which versions slots play, each once."""
    noted = set[tuple[int, int]]()

    def call(*arguments: Any, **more: Any) -> Any:
        step = method(*arguments, **more)
        played = {*zip(step.version.tolist(), step.slots.tolist(), strict=True)} - noted
        noted.update(played)
        for version in sorted({version for version, _ in played}):
            note(played=version, slots=sorted(slot for by, slot in played if by == version))
        return step

    return call
