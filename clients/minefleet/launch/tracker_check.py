"""Looks for a tracker by its name without importing it, so that a missing one is refused at once."""

from importlib.metadata import entry_points
from importlib.util import find_spec

from minefleet.config.root_config import OUR_TRACKERS
from minefleet.core.errors import ConfigError

ENTRY_POINTS = "minefleet.trackers"
"""Group of entry points in which packages offer trackers."""


def check_tracker(name: str) -> None:
    """Refuses a tracker that is not installed. Each of ours is named like the package that it needs.

    Raises:
        ConfigError: Says what to install, or which there are.
    """
    if name in OUR_TRACKERS:
        if find_spec(name) is None:
            raise ConfigError(f"the tracker {name} needs its package: pip install 'minefleet[{name}]'")
        return
    offered = entry_points(group=ENTRY_POINTS).names
    if name not in offered:
        raise ConfigError(
            f"logger_config.trackers must name some of {', '.join(sorted([*OUR_TRACKERS, *offered]))}, got {name!r}; "
            f"packages offer more as entry points of the group {ENTRY_POINTS}"
        )
