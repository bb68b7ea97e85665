"""Our side of `benchmarks/training.py`: `minefleet train`, with all its processes."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness import whole_cases as numbers
from harness.peers import PEERS, install
from harness.replaying import scratch
from harness.tracing import Row, Trace
from harness.watching import Watch
from harness.whole_cases import BATCH, BATCHES, CASES, ROLLOUT, Case
from minefleet.policies import build
from minefleet.runs.run_yaml import Run, read_run


def train(
    name: str,
    overrides: Sequence[str] = (),
    *,
    seed: int,
    seconds: float,
    steps: float = math.inf,
    look: Callable[[int, Path], None] = lambda pid, run: None,
) -> Trace:
    """Trains until so many seconds after the first iteration, or so many steps.

    Args:
        name: Of the case.
        overrides: `KEY=VALUE` of our configuration.
        seed: Of the run.
        seconds: See above.
        steps: See above.
        look: Shown the process and the run's directory now and then.
    """
    with scratch() as directory:
        path, run = directory / "config.yaml", directory / "run"
        path.write_text(yaml.safe_dump({"seed": seed, **config_of(CASES[name])}))
        watch = Watch(
            command=[sys.executable, "-m", "minefleet", "train", str(path), *overrides, "--run-dir", str(run)],
            directory=directory,
        )

        def is_over() -> bool:
            look(watch.pid, run)
            rows = rows_of(run)
            return bool(rows) and (rows[-1].at_s - rows[0].at_s > seconds or rows[-1].steps >= steps)

        watch.run(is_over)
        return Trace(parameters=count(read_run(run)), rows=rows_of(run), watch=watch)


def rows_of(run: Path) -> list[Row]:
    """The iterations so far."""
    metrics = run / "metrics.jsonl"
    if not metrics.exists():
        return []
    whole = metrics.read_text().rpartition("\n")[0].splitlines()
    keys = ("wall_s", "trained_steps", "episode_return_mean", "learner_wait_ratio")
    return [Row(*(row[key] for key in keys)) for row in map(json.loads, whole)]


def count(run: Run) -> int:
    """Parameters of its policy."""
    return sum(parameter.numel() for parameter in build(run.config.policy, run.schema).parameters())


def config_of(case: Case) -> dict[str, Any]:
    """The configuration, with the hyper-parameters that `benchmarks/training.py` lists."""
    return {
        **({"preset": case.preset} if case.preset else {}),
        "env": env_of(case),
        "policy": policy_of(case),
        "rollout_config": {
            "fragment_length": ROLLOUT,
            "worker_config": {"num_envs": case.envs, "envs_per_process": case.envs_per_process},
            "replay_buffer_config": {"max_reuse": 1, "max_staleness": 2},
            "episode_statistics_config": {"window": numbers.WINDOW},
        },
        "train_config": {
            "learning_rate": numbers.LEARNING_RATE,
            "anneal_lr_linearly": False,
            "adam_eps": numbers.ADAM_EPS,
            "max_grad_norm": numbers.MAX_GRAD_NORM,
            "discount": numbers.DISCOUNT,
            "gae_lambda": numbers.GAE_LAMBDA,
            "gae_values": "behaviour",
            "off_policy": "clip",
            "ppo_clip": numbers.CLIP,
            "log_ratio_range": math.log(numbers.LARGEST_RATIO),
            "entropy_bonus_coef": numbers.ENTROPY,
            "ppo_vf_coef": 2 * numbers.VALUE,
            "batch_size_per_gpu": BATCH // ROLLOUT,
            "batches_per_iteration": BATCHES,
            "epochs_per_iteration": 1,
            "context_length": ROLLOUT,
            "num_iterations": 10**9,
            "save_interval": 0,
            "latest_min_interval_s": numbers.SAVE_S,
        },
    }


def env_of(case: Case) -> dict[str, Any]:
    """The environment. An end by a limit of time is an end, as in Sample Factory."""
    if not case.python:
        return {"generator": case.env, "time_limit": "terminated"}
    module, _, factory = case.env.partition(":")
    python = str(install(case.python, constrained=False))
    if case.preset:
        return {"python": python, "time_limit": "terminated"}
    return {"generator": f"{PEERS / module}.py:{factory}", "python": python, "time_limit": "terminated"}


def policy_of(case: Case) -> dict[str, Any]:
    """The network."""
    network = {"hidden_size": case.hidden, "gru_size": case.gru, "separate_value_trunk": False, "normalize_obs": False}
    if case.has_frames:
        return {**network, "activation": "relu", "normalize_pixels": False, "conv_channels": [32, 64, 128]}
    return {**network, "activation": "tanh", "hidden_layers": 2}
