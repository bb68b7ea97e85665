"""Keeps count of the running episode of every slot and makes a record of each that ends."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.v1 import episode_pb2

Slots = NDArray[np.intp]


class RunningEpisodes:
    """Return, discounted return and length of every slot's running episode."""

    def __init__(
        self, slots: int, discount: float, *, evaluation: bool = False, canary: NDArray[np.bool_] | None = None
    ) -> None:
        self._discount = discount
        self._evaluation = evaluation
        self._canary = np.zeros(slots, np.bool_) if canary is None else canary
        self._return = np.zeros(slots)
        self._discounted = np.zeros(slots)
        self._length = np.zeros(slots, np.int64)
        self._elapsed = np.zeros(slots, np.int64)
        """The environment's own steps."""
        self._reward = np.zeros(slots)
        self._number = np.zeros(slots, np.int64)
        """Of the running episode: 0, 1, ..."""

    def so_far(self, slot: int) -> tuple[int, float]:
        """Length and return of the slot's running episode."""
        return int(self._length[slot]), float(self._return[slot])

    def last_reward(self, slot: int) -> float:
        """Reward of the slot's last step, which may have ended an episode."""
        return float(self._reward[slot])

    def add(self, slots: Slots, reward: NDArray[Any], discounted: NDArray[Any], duration: NDArray[np.uint32]) -> None:
        """Counts one step of each slot.

        Args:
            slots: [n].
            reward: [n], the sum of what the environment gave.
            discounted: [n], the same discounted from the step's start.
            duration: [n], how many steps of its own the environment took.
        """
        self._reward[slots] = reward
        self._return[slots] += reward
        self._discounted[slots] += discounted * self._discount ** self._elapsed[slots]
        self._elapsed[slots] += duration
        self._length[slots] += 1

    def end(
        self,
        slot: int,
        stream: str,
        *,
        version: int,
        terminated: bool = False,
        truncated: bool = False,
        metrics: Mapping[str, float] | None = None,
        task: str = "",
        failure: str = "",
    ) -> episode_pb2.EpisodeRecord:
        """Closes the slot's episode."""
        record = episode_pb2.EpisodeRecord(
            stream=stream,
            episode=int(self._number[slot]),
            task=task,
            episode_return=float(self._return[slot]),
            discounted_return=float(self._discounted[slot]),
            length=int(self._length[slot]),
            terminated=terminated,
            truncated=truncated,
            policy_version=version,
            evaluation=self._evaluation,
            canary=bool(self._canary[slot]),
            metrics=dict(metrics or {}),
            failure=failure,
        )
        self._return[slot] = self._discounted[slot] = self._length[slot] = self._elapsed[slot] = 0
        self._number[slot] += 1
        return record
