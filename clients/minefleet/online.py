"""A run from Python, in two halves: `start_rolloutmanager`, then `start_trainer`, as often as one likes.

    this process ── start_rolloutmanager ──▶ rollout manager ──▶ replay, parameters, actors
         └───────── start_trainer ─────────▶ learner

Both take two functions and a configuration, as MineStudio's do. Functions travel by file and name.

Who dies with whom: the learner is killed when this process dies. So are the rollout manager and its roles, unless
`detach_rollout_manager` is set: then they stay until `get_rollout_manager(run_dir).stop()` or a SIGTERM to
`RolloutManager.pid`. Whatever is killed, the next start goes on from the last checkpoint.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from minefleet.config import FleetConfig
from minefleet.config.load import from_settings
from minefleet.config.yaml_text import as_yaml
from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ConfigError, FleetError, GaveUpError
from minefleet.core.function_references import reference_of
from minefleet.launch import rollout_manager_process
from minefleet.launch.role_supervisor import LEARNER_ONLY, supervisor
from minefleet.launch.rollout_manager_handle import RolloutManager
from minefleet.launch.run_directory_setup import RESULT_FILE, join, prepare, prepare_resumed
from minefleet.launch.run_lock import hold, holding
from minefleet.runs.run_yaml import RUN_FILE, WHOLE_CONFIG_FILE, Run, read_run

logger = logging.getLogger(__name__)

RUNS = Path("runs")
DEFAULT_NAME = "online"

Generator: TypeAlias = Callable[..., Any]
Settings: TypeAlias = Mapping[str, Any]


def start_rolloutmanager(
    policy_generator: Generator | None,
    env_generator: Generator | None,
    cfg: Settings,
    run_dir: Path | str | None = None,
) -> RolloutManager:
    """Starts replay, parameters and actors of a run and returns; where they run already, they are taken over.

    Args:
        policy_generator: Makes a policy, from `policy.kwargs` and, if it asks for it, the schema. None for the one that
            `cfg` describes.
        env_generator: Makes an environment. None for the one that `cfg` describes.
        cfg: The configuration, as nested plain data or of OmegaConf.
        run_dir: Where the run lies, or shall; by default `runs/` and `logger_config.name`, or `runs/online`.

    Raises:
        ConfigError: If the configuration cannot work, a function cannot be found by file and name, the directory is in
            use, or the run that is up has another configuration.
    """
    config = _resolve(policy_generator, env_generator, cfg)
    directory = _directory(config, run_dir)
    is_there = (directory / RUN_FILE).exists()
    if is_there and (manager := get_rollout_manager(directory)).pid:
        return RolloutManager(join(config, manager.run.directory))
    run = None if is_there else prepare(config, directory)
    descriptor = hold(directory)
    return rollout_manager_process.start(
        run or prepare_resumed(config, read_run(directory)),
        outlives_us=config.detach_rollout_manager,
        descriptor=descriptor,
    )


def start_trainer(
    policy_generator: Generator | None,
    env_generator: Generator | None,
    cfg: Settings,
    whole_config: str | Settings = "",
    run_dir: Path | str | None = None,
) -> dict[str, Any]:
    """Trains on a run whose rollout manager is up, and blocks until that ends. Called by the main thread.

    A run that was trained before goes on from its newest checkpoint. The rollout manager is stopped afterwards, however
    it ends, unless `detach_rollout_manager` is set.

    Args:
        policy_generator: As of `start_rolloutmanager`, and so are the others.
        env_generator: Likewise.
        cfg: Likewise. Only `stop`, `logger_config` and `detach_rollout_manager` may differ from what the roles have.
        whole_config: Text, or a mapping as `cfg` is, that is kept in the run directory, as `whole_config.txt`, and
            shown by wandb.
        run_dir: Likewise.

    Returns:
        What `result.json` says of the end.

    Raises:
        ConfigError: If no rollout manager is up, it has another configuration, or another trainer is on it.
        GaveUpError: If the learner fails for good.
    """
    config = _resolve(policy_generator, env_generator, cfg)
    text = whole_config if isinstance(whole_config, str) else as_yaml(whole_config, "whole_config")
    directory = _directory(config, run_dir)
    manager = get_rollout_manager(directory)
    if not manager.pid:
        raise ConfigError(
            f"nothing keeps replay, parameters and actors of {directory} alive: start_rolloutmanager first"
        )
    with holding(manager.run.logs):
        try:
            return _train(_adopt(config, join(config, directory), text))
        finally:
            if not config.detach_rollout_manager:
                manager.stop()


def get_rollout_manager(run_dir: Path | str) -> RolloutManager:
    """The handle on a run's rollout manager, whether it is up or not.

    Raises:
        ConfigError: If there is no run in the directory.
    """
    return RolloutManager(read_run(Path(run_dir)))


def _resolve(policy_generator: Generator | None, env_generator: Generator | None, cfg: Settings) -> FleetConfig:
    given = (("policy", policy_generator), ("env", env_generator))
    generators = {section: reference_of(function) for section, function in given if function is not None}
    return from_settings(cfg, "cfg", generators)


def _directory(config: FleetConfig, run_dir: Path | str | None) -> Path:
    return Path(run_dir or RUNS / (config.logger_config.name or DEFAULT_NAME)).absolute()


def _adopt(config: FleetConfig, run: Run, whole_config: str) -> Run:
    """Writes what this trainer says of the run."""
    changed = replace(
        run.config,
        stop=config.stop,
        logger_config=config.logger_config,
        detach_rollout_manager=config.detach_rollout_manager,
    )
    adopted = replace(run, config=changed)
    adopted.write()
    if whole_config:
        write_whole(run.directory / WHOLE_CONFIG_FILE, whole_config)
    return adopted


def _train(run: Run) -> dict[str, Any]:
    manager, result = RolloutManager(run), run.directory / RESULT_FILE

    def tick() -> None:
        if not manager.pid:
            log = run.logs / rollout_manager_process.LOG
            raise FleetError(f"the rollout manager has ended before the learner; see {log}")

    result.unlink(missing_ok=True)
    ending = supervisor(run, logger.info, tick, stages=LEARNER_ONLY).run()
    if ending.stopped_by == "failure":
        raise (ConfigError if ending.is_config_error else GaveUpError)(ending.reason)
    return dict(json.loads(result.read_text())) if result.exists() else {"stopped_by": ending.stopped_by}
