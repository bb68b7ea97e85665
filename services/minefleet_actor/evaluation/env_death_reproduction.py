"""Plays what led to the death of an environment once more, and says whether it dies in the same way."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from minefleet.core.errors import ConfigError
from minefleet.core.tree import unflatten
from minefleet.monitoring.env_death_groups import ACTIONS_FILE, Death, group_of, read_death
from minefleet_actor.env_death_recorder import RESET_FAILED, obs_digest
from minefleet_actor.pool import Failure, Pool

SLOT, WAIT_S = np.zeros(1, np.intp), 60.0


def repeat(pool: Pool, place: Path) -> tuple[bool, str]:
    """Repeats the death that a directory keeps; returns whether it was the same, and what came of it, for people.

    Raises:
        ConfigError: If there is no whole death, or it cannot be repeated.
    """
    death = read_death(place)
    if death["cannot_repeat"]:
        raise ConfigError(f"{place} cannot be repeated: {death['cannot_repeat']}")
    try:
        with np.load(place / ACTIONS_FILE) as file:
            arrays = [file[name] for name in ("actions", "begin", "digest", "task")]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ConfigError(f"{place / ACTIONS_FILE} is damaged: {error}") from error
    try:
        pool.start()
        return _play(pool, death, *arrays)
    finally:
        pool.close()


def _play(pool: Pool, death: Death, actions: Any, begins: Any, digests: Any, tasks: Any) -> tuple[bool, str]:
    """Plays all episodes since the environment was made; it died in the last one."""
    last, where = len(begins), ""
    for episode, (begin, end) in enumerate(zip(begins, [*begins[1:], len(actions)], strict=True), 1):
        pool.reset(SLOT, death["seed"] if episode == 1 else None, str(tasks[episode - 1]))
        (failure, is_over), step, digest = _answer(pool), begin, digests[episode - 1]
        if failure is None and digest not in (RESET_FAILED, obs_digest(pool.obs, 0)):
            return False, f"it differs, it is not deterministic: episode {episode} of {last} begins with something else"
        while step < end and failure is None and not is_over:
            pool.step(SLOT, unflatten({name[1:]: actions[name][step : step + 1] for name in actions.dtype.names}))
            (failure, is_over), step = _answer(pool), step + 1
        where = f"after {step - begin} steps of episode {episode} of {last}"
        if failure is not None:
            group = group_of(failure.kind, failure.text)
            if group == death["group"] and ((episode, step) == (last, end) or group == "memory"):
                return True, f"it died in the same way, of {group}, {where}"  # Memory is looked at by the clock.
            return False, f"it differs: of {group}, {where}; recorded is {death['group']}, at the end of the last"
        if step < end or (episode < last and not is_over):
            return False, f"it differs, it is not deterministic: {where} an end is no end, or comes too early"
    return False, f"it differs: {where} all is as recorded, and it lives; the cause may lie outside of it"


def _answer(pool: Pool) -> tuple[Failure | None, bool]:
    """Waits for what was asked for; returns how it failed, if so, and whether the episode is over."""
    while not len((ready := pool.wait(WAIT_S)).slots):
        pass
    return ready.failures.get(0), bool(ready.terminated[0] or ready.truncated[0])
