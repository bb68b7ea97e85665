"""Looks for trackers before a role starts: `python -m minefleet_learner.trackers.tracker_check NAME ...`."""

import sys

from minefleet.core.parent_death import die_with_launcher
from minefleet.core.subprocess_call import reply
from minefleet_learner.trackers.tracker import find


def answer(names: list[str]) -> dict[str, list[str]]:
    """Returns the names, each of which has been found."""
    for name in names:
        find(name)
    return {"trackers": names}


if __name__ == "__main__":
    die_with_launcher()
    reply(lambda: answer(sys.argv[1:]))
