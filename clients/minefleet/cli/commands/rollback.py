"""`minefleet rollback`: a run goes back to an older checkpoint. A learner that trains does so after its iteration."""

import argparse

from minefleet.cli.learner_answer_wait import wait_for_answer
from minefleet.core.errors import ConfigError
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import REFUSED, ask
from minefleet.monitoring.live_settings_by_iteration import settings_at
from minefleet.runs.checkpoint_rollback import choose
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.run_yaml import read_run


def run(arguments: argparse.Namespace) -> int:
    """Asks the learner, and says where the run goes on."""
    trained = read_run(arguments.run_dir or newest_run())
    directory, place = trained.directory, choose(trained.checkpoints, arguments.to)
    answer = wait_for_answer(directory, trained.config, lambda: ask(directory, arguments.why, rollback=arguments.to))
    if answer is None:
        print(f"goes back to {place} at the next start; no learner runs now")
    elif answer["event"] == REFUSED:
        raise ConfigError(answer["reason"])
    else:
        version, iteration, left = answer["version"], answer["iteration"], answer["left"][0]
        print(f"goes back to version {version}, iteration {iteration}; what came until iteration {left} is undone")
        for key, value in settings_at(read_whole_journal(directory), iteration + 1).items():
            print(f"{key} stays {value}: it was set before that iteration")
    return 0
