"""`minefleet set`: changes keys of a run while it goes."""

import argparse
import json
from pathlib import Path
from typing import Any

from minefleet.cli.config_arguments import split
from minefleet.cli.learner_answer_wait import wait_for_answer
from minefleet.config.live_settings import settings_of, with_settings
from minefleet.config.overrides import read_overrides
from minefleet.core.errors import ConfigError
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import REFUSED, ask
from minefleet.monitoring.live_settings_by_iteration import settings_to_come
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.run_yaml import read_run


def run(arguments: argparse.Namespace) -> int:
    """Asks the learner, and says from which iteration on the keys have other values."""
    named, overrides = split(arguments.settings)
    directory = Path(named) if named else newest_run()
    asked = settings_of(read_overrides(overrides))
    if not asked:
        raise ConfigError("give the keys to change, as in train_config.learning_rate=1e-4; --help lists them")
    config = read_run(directory).config
    with_settings(config, settings_to_come(config, read_whole_journal(directory)) | asked)
    answer = wait_for_answer(directory, config, lambda: ask(directory, arguments.why, set=asked))
    if answer is None:
        for key, value in asked.items():
            print(f"{key}: {_shown(value)} from the next start on; no learner runs now")
    elif answer["event"] == REFUSED:
        raise ConfigError(answer["reason"])
    else:
        for change in answer["keys"]:
            old, new = _shown(change["old"]), _shown(change["new"])
            print(f"{change['key']}: {old} → {new} from iteration {answer['iteration']} on")
    return 0


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
