"""Rewards for what the engine counts: blocks mined, entities killed, items crafted or picked up."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minefleet_env.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

KEYS = ("event", "objects", "reward", "max_reward_times", "identity")


@dataclass(frozen=True)
class Rule:
    """A rule that pays for objects.

    Counts of all objects are added up, and each unit pays, as long as it is among the first ones.
    """

    event: str
    objects: Sequence[str]
    reward: float
    limit: float
    """Units of an episode that pay; infinite where all do."""
    identity: str
    """Name of the rule among the metrics of an episode."""


class Rewards:
    """Pays for the events of an episode by their counts, which only rise."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.events = tuple(sorted({rule.event for rule in rules}))
        self._rules = rules
        self._first: list[float] = []
        """Per rule, the count when the episode began."""
        self._paid = [0.0] * len(rules)

    def reset(self, counts: Mapping[str, Mapping[str, Any]]) -> None:
        """Begins an episode with what had been counted before."""
        self._first = [_total(rule, counts) for rule in self._rules]
        self._paid = [0.0] * len(self._rules)

    def pay(self, counts: Mapping[str, Mapping[str, Any]]) -> float:
        """The reward of a step.

        Args:
            counts: After the step, numbers by event and object; what has not happened may be missing.
        """
        reward = 0.0
        for index, rule in enumerate(self._rules):
            due = min(_total(rule, counts) - self._first[index], rule.limit)
            if due > self._paid[index]:
                reward += rule.reward * (due - self._paid[index])
                self._paid[index] = due
        return reward

    def metrics(self) -> dict[str, float]:
        """By identity, how many units have been paid for in this episode."""
        return {rule.identity: paid for rule, paid in zip(self._rules, self._paid)}


def rules_of(rewards: Iterable[Mapping[str, Any]], known: Mapping[str, Collection[str]]) -> list[Rule]:
    """Reads rules as MineStudio's `RewardsCallback` writes them; `max_reward_times` and `identity` may be left out.

    Args:
        rewards: Mappings of `KEYS`.
        known: Objects by event.

    Raises:
        RefusedError: If a key, event or object is unknown, with the nearest that is known, or a value is none.
    """
    rules = [_rule(dict(reward), known) for reward in rewards]
    names = [rule.identity for rule in rules]
    if len(set(names)) < len(names):
        raise RefusedError(f"rewards must differ in their identity, got {names}")
    return rules


def _rule(reward: dict[str, Any], known: Mapping[str, Collection[str]]) -> Rule:
    for key in reward:
        _check("a key of a reward", key, KEYS)
    missing = [key for key in KEYS[:3] if key not in reward]
    if missing:
        raise RefusedError(f"the reward {reward} lacks {', '.join(missing)}")
    event, objects = str(reward["event"]), list(reward["objects"])
    _check("an event", event, known)
    for one in objects:
        _check(f"an object of {event}", one, known[event])
    limit = reward.get("max_reward_times")
    try:
        identity = str(reward.get("identity") or f"{event} {' or '.join(objects)}")
        return Rule(event, objects, float(reward["reward"]), float("inf") if limit is None else int(limit), identity)
    except (TypeError, ValueError) as error:
        raise RefusedError(f"the reward {reward} is none: {error}") from error


def _check(what: str, name: Any, known: Collection[str]) -> None:
    if name not in known:
        nearest = difflib.get_close_matches(str(name), known) or sorted(known)[:10]
        raise RefusedError(f"{name!r} is not {what}; the nearest are {', '.join(nearest)}")


def _total(rule: Rule, counts: Mapping[str, Mapping[str, Any]]) -> float:
    of_event = counts.get(rule.event) or {}
    return float(sum(of_event.get(name, 0) for name in rule.objects))
