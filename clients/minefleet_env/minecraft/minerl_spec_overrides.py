"""Specifications of MineRL's environments, changed before the environment is made."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from minefleet_env.errors import EnvError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POV = "pov"
COUNTS = "minefleet_counts"


def registered(gym: Any, name: str) -> Any:
    """The specification that MineRL has registered under a name.

    Raises:
        RefusedError: If there is none; names the nearest.
    """
    specs = gym.envs.registry.env_specs
    if name not in specs or "env_spec" not in specs[name].kwargs:
        known = [each for each, spec in specs.items() if "env_spec" in spec.kwargs]
        nearest = difflib.get_close_matches(name, known) or sorted(known)
        raise RefusedError(f"MineRL has no environment {name!r}; the nearest are {', '.join(nearest)}")
    return specs[name].kwargs["env_spec"]


def known_events() -> dict[str, set[str]]:
    """By event, the objects that the engine counts."""
    known: dict[str, set[str]] = {}
    for event, name in importlib.import_module("minerl.herobraine.hero.mc").ALL_STAT_KEYS:
        known.setdefault(event, set()).add(name)
    return known


def prune(spec: Any, observables: Sequence[str], events: Sequence[str]) -> None:
    """Leaves the frame, what is asked for, and the counts of the events; and no monitors, which nobody reads.

    An environment that comes in wrappers of its own keeps all its observables: they may read them, as those of
    MineRLObtainDiamondShovel do.

    Raises:
        RefusedError: If the environment does not have what is asked for.
    """
    known = {handler.to_string() for handler in spec.observables} - {POV}
    for name in observables:
        if name not in known:
            raise RefusedError(f"{spec.name} has no observable {name!r}; it has {', '.join(sorted(known)) or 'none'}")
    all_of_them = spec.create_observables
    spaces = importlib.import_module("minerl.herobraine.hero.spaces")
    counts = ItemCounts(events, spaces.Dict({}))
    has_wrappers = spec._entry_point(fake=False) != spec.U_SINGLE_AGENT_ENTRYPOINT
    wanted = {POV, *observables, *(known if has_wrappers else ())}
    spec.create_observables = lambda: [*(each for each in all_of_them() if each.to_string() in wanted), counts]
    spec.create_monitors = list


def start_with(spec: Any, biome: str, inventory: Sequence[Mapping[str, Any]], *, ends_at_death: bool) -> None:
    """Makes episodes begin in a biome and with an inventory, where these are not empty.

    Raises:
        RefusedError: If Minecraft has no such item; names the nearest.
    """
    items = importlib.import_module("minerl.herobraine.hero.mc").ALL_ITEMS
    for stack in inventory:
        if stack.get("type") not in items:
            nearest = difflib.get_close_matches(str(stack.get("type")), items) or items[:5]
            raise RefusedError(f"Minecraft has no item {stack.get('type')!r}; the nearest are {', '.join(nearest)}")
    handlers = importlib.import_module("minerl.herobraine.hero.handlers")
    start = importlib.import_module("minerl.herobraine.hero.handlers.agent.start")
    more = [start.DoneOnDeath()] if ends_at_death else []
    if biome:
        more.append(start.PreferredSpawnBiome(biome))
    if inventory:
        more.append(handlers.SimpleInventoryAgentStart([dict(stack) for stack in inventory]))
    as_before = spec.create_agent_start
    # Of handlers of one kind the last one counts.
    spec.create_agent_start = lambda: [*as_before(), *more]


class ItemCounts:
    """Makes the engine send its statistics, and passes on some of them without reading the other thousands.

    To MineRL it is one more handler of observations. It also sees to it that there is a picture, in whose place MineRL
    would show a black one.
    """

    def __init__(self, events: Iterable[str], space: Any) -> None:
        self._events = events
        self.space = space

    def to_string(self) -> str:
        """Its key among the observations."""
        return COUNTS

    def xml(self) -> str:
        """The mission's XML for it: empty where no event is wanted."""
        return "<ObservationFromFullStats/>" if self._events else ""

    def from_hero(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """The counts by event and object."""
        if not info[POV]:
            raise EnvError("Minecraft sent no picture", "error")
        return {event: info.get(event, {}) for event in self._events}
