"""Plays one environment with random actions and reports it.

    python -m minefleet_actor.evaluation.random_play_check CONFIG SCHEMA

CONFIG and SCHEMA are JSON. The environment runs in the pool that an actor uses, with the run's settings: its wrappers,
its watchdogs, its limits. Exit code 0 when nothing failed, 1 otherwise.
"""

import argparse
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from minefleet.config import FleetConfig
from minefleet.core.errors import FleetError, GaveUpError
from minefleet.core.parent_death import die_with_launcher
from minefleet.core.schema import Leaf, Schema, zeros
from minefleet.core.tree import Tree, tree_map
from minefleet.runs.run_yaml import from_dict
from minefleet_actor.evaluation.env_check_report import EnvCheckReport, describe, describe_spaces
from minefleet_actor.evaluation.env_death_reproduction import repeat
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool

WAIT_S = 1.0
SLOT = np.zeros(1, np.intp)


def main() -> int:
    """Plays, and prints what came of it."""
    arguments = parse(sys.argv[1:])
    die_with_launcher()
    logging.getLogger("minefleet_actor.pool").setLevel(logging.ERROR)  # Failures are reported at the end.
    config = from_dict(json.loads(arguments.config))
    try:
        schema = read_schema(arguments, config)
        show(describe_spaces(config.env.generator or config.env.id, schema))
        pool = make_pool(arguments, config, schema)
        if arguments.replay is not None:
            is_same, verdict = repeat(pool, arguments.replay)
            show(f"\n{verdict}")
            return 0 if is_same else 1
        report = play(pool, schema, arguments)
    except FleetError as error:
        show(f"\n{error}")
        return 1
    show(describe(report))
    return 1 if report.failures else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="minefleet env", description="Play an environment alone.")
    parser.add_argument("config", help="the whole configuration, JSON")
    parser.add_argument("schema", help="the environment's spaces, JSON; null to look at them here")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--noop-actions", action="store_true")
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--replay", type=Path)
    return parser.parse_args(argv)


def read_schema(arguments: argparse.Namespace, config: FleetConfig) -> Schema:
    """The environment's spaces, as given or as an environment made here has them."""
    given = json.loads(arguments.schema)
    if given is not None:
        return Schema.from_dict(given)
    from minefleet import envs

    env = envs.make(config.env)
    try:
        return envs.schema_of(env)
    finally:
        env.close()


def make_pool(arguments: argparse.Namespace, config: FleetConfig, schema: Schema) -> Pool:
    """A pool of one environment, with the run's settings."""
    worker = replace(config.rollout_config.worker_config, num_envs=1, envs_per_process=1, start_jitter_s=0.0)
    if arguments.replay is not None:
        worker = replace(worker, max_consecutive_failures=2, restart_interval=0.0)  # Its one failure is the result.
    kind = InlinePool if arguments.inline else EnvPool
    return kind(config.env, schema, worker, seed=arguments.seed, actor_index=0)


def play(pool: Pool, schema: Schema, arguments: argparse.Namespace) -> EnvCheckReport:
    """Steps the environment so often, with as many resets as that takes; Ctrl-C and giving up end it early."""
    report, random = EnvCheckReport(), np.random.default_rng(arguments.seed)
    try:
        began = time.monotonic()
        pool.start()
        report.start_s = time.monotonic() - began
        pool.reset(SLOT)
        report.began()
        while report.steps < arguments.steps:
            turn(pool, report, zeros(schema.action, 1) if arguments.noop_actions else random_action(schema, random))
        report.rss_bytes.append(rss_bytes(pool))
    except KeyboardInterrupt:
        report.ended_by = "interrupted"
    except GaveUpError as error:
        if not report.rss_bytes:
            raise
        report.ended_by = str(error)
    finally:
        pool.close()
    return report


def turn(pool: Pool, report: EnvCheckReport, action: Tree) -> None:
    """Reads the environment's result, if there is one, and starts its next step or episode."""
    ready = pool.wait(WAIT_S)
    if not len(ready.slots):
        return
    report.take(ready)
    if ready.kind[0] == Kind.RESET:
        if len(report.rss_bytes) == 0:
            report.rss_bytes.append(rss_bytes(pool))
    elif ready.kind[0] == Kind.FAILED or ready.terminated[0] or ready.truncated[0]:
        pool.reset(SLOT)
        report.began()
        return
    pool.step(SLOT, action)
    report.began()


def random_action(schema: Schema, random: np.random.Generator) -> Tree:
    """An action drawn evenly, [1, ...]; of numbers without bounds, normally."""
    return tree_map(lambda leaf: draw(leaf, random)[None], schema.action)


def draw(leaf: Leaf, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """One value of a leaf."""
    if leaf.categories:
        return random.integers(0, np.reshape(leaf.categories, leaf.shape), leaf.shape, leaf.dtype)
    low, high = _bound(leaf.low, leaf.shape), _bound(leaf.high, leaf.shape)
    bounded = np.isfinite(low) & np.isfinite(high)
    even = random.uniform(np.where(bounded, low, 0), np.where(bounded, high, 1), leaf.shape)
    return np.where(bounded, even, np.clip(random.normal(size=leaf.shape), low, high)).astype(leaf.dtype)


def _bound(bound: float | tuple[float, ...], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.reshape(bound, shape) if isinstance(bound, tuple) else np.full(shape, bound)


def rss_bytes(pool: Pool) -> int:
    """Memory of the environment: of its process and that one's children or, where it has none, of this one."""
    pids = pool.pids if isinstance(pool, EnvPool) else [psutil.Process().pid]
    total = 0
    for pid in filter(None, pids):
        try:
            process = psutil.Process(pid)
            total += sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
        except psutil.NoSuchProcess:
            continue
    return total


def show(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)  # noqa: T201  # This module is a command.


if __name__ == "__main__":
    sys.exit(main())
