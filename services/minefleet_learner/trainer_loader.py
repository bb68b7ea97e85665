"""Finds the trainer that `trainer_name` names.

It is somebody's code, so a child process checks it before a role starts:
`python -m minefleet_learner.trainer_loader NAME`.
"""

import inspect
import sys
from dataclasses import asdict, fields
from functools import partial

from minefleet.config import TrainConfig
from minefleet.config.root_config import OUR_TRAINER
from minefleet.core import function_references
from minefleet.core.errors import ConfigError
from minefleet.launch.rollout_manager_handle import RolloutManager
from minefleet.runs.run_yaml import Run
from minefleet_learner.base_trainer import BaseTrainer, PPOTrainer


def find(name: str) -> type[BaseTrainer]:
    """The class of a name: ours, or that of `module:Class` or `file.py:Class`.

    Raises:
        ConfigError: If it cannot be found or is no trainer; says what was found.
    """
    if name == OUR_TRAINER:
        return PPOTrainer
    try:
        found = function_references.load(name)
    except ConfigError as error:
        raise ConfigError(f"trainer_name={name}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, BaseTrainer):
        kind = f"the class {found.__qualname__}" if isinstance(found, type) else f"a {type(found).__qualname__}"
        raise ConfigError(f"trainer_name={name} is {kind}, which is no subclass of minefleet_learner.BaseTrainer")
    if inspect.isabstract(found):
        raise ConfigError(f"trainer_name={name} lacks {', '.join(sorted(found.__abstractmethods__))}")
    return found


def build_trainer(run: Run) -> BaseTrainer:
    """Builds the trainer of a run."""
    from minefleet.policies import build
    from minefleet_env.make_env import make

    config = run.config
    return find(config.trainer_name)(
        RolloutManager(run),
        partial(build, config.policy, run.schema, config.path_map),
        partial(make, asdict(config.env)),
        **{field.name: getattr(config.train_config, field.name) for field in fields(TrainConfig)},
    )


if __name__ == "__main__":
    from minefleet.core.child_process_answers import reply
    from minefleet.core.parent_death import die_with_launcher

    die_with_launcher()
    reply(lambda: {"trainer": find(sys.argv[1]).__qualname__})
