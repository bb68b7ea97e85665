"""A `gymnasium.vector.VectorEnv`, and its rows as environments that have been reset and stepped already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.discounted_step_rewards import STEP_REWARDS
from minefleet_env.errors import EnvError
from minefleet_env.space_conversion import batch_of, row_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""The values of `gymnasium.vector.AutoresetMode`."""
INFO_KEYS = ("error", "task", "metrics", STEP_REWARDS)
"""Keys of an environment's info that are read."""


class EnvBatch:
    """A vector environment and its latest results."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.mode = autoreset_mode(env)
        self._obs: Any = None
        self._infos: Mapping[str, Any] = {}
        self._reward = self._terminated = self._truncated = np.zeros(env.num_envs)

    def reset(self, **arguments: Any) -> None:
        """Resets all rows, or those that a mask in the options names."""
        self._obs, self._infos = self.env.reset(**arguments)

    def step(self, actions: Sequence[Any]) -> None:
        """Steps all rows, by an action for each. Raises `EnvError` where the results are not one per row."""
        self._obs, *results, self._infos = self.env.step(batch_of(self.env.single_action_space, actions))
        if [np.shape(result) for result in results] != 3 * [(self.env.num_envs,)]:
            raise EnvError(
                f"rewards and ends must be {self.env.num_envs} each, got {[np.shape(each) for each in results]}"
            )
        self._reward, self._terminated, self._truncated = map(np.asarray, results)

    @property
    def is_over(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[n] bool: the rows whose episode the latest step has ended."""
        return np.logical_or(self._terminated, self._truncated)

    def first(self, row: int) -> tuple[Any, Mapping[str, Any]]:
        """The observation with which a row's episode begins, and its info."""
        return row_of(self.env.single_observation_space, self._obs, row), _info_of(self._infos, row)

    def result(self, row: int) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """A row's part of the latest step, with the last observation of an episode that is over, whatever the mode."""
        obs, info = self.first(row)
        if self.mode == SAME_STEP and self.is_over[row]:
            if "final_obs" not in self._infos:
                raise EnvError(
                    "a batch that resets in the same step must give the last observations as info['final_obs']"
                )
            obs = row_of(self.env.single_observation_space, self._infos["final_obs"], row)
            info = _info_of(self._infos.get("final_info", {}), row)
        return obs, self._reward[row], self._terminated[row], self._truncated[row], info


class BatchRow:
    """An environment that is one row of a batch, which somebody else resets and steps."""

    def __init__(self, batch: EnvBatch, row: int) -> None:
        self.observation_space = batch.env.single_observation_space
        self.action_space = batch.env.single_action_space
        self._batch, self._row = batch, row

    def reset(self, **_: Any) -> tuple[Any, Mapping[str, Any]]:
        """Returns the observation after the reset, and the info."""
        return self._batch.first(self._row)

    def step(self, _: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Returns what the step has brought."""
        return self._batch.result(self._row)

    def render(self) -> Any:
        """Returns the row's current frame."""
        return self._batch.env.render()[self._row]

    def close(self) -> None:
        """Closes the whole batch, once: the first row does."""
        if self._row == 0:
            self._batch.env.close()


class SoleRow(BatchRow):
    """A batch of one as an environment. One that `is_seeded` was seeded when it was made: its reset takes no seed."""

    def __init__(self, batch: EnvBatch, *, is_seeded: bool) -> None:
        super().__init__(batch, 0)
        self._is_seeded = is_seeded

    def reset(self, *, seed: int | None = None, **_: Any) -> tuple[Any, Mapping[str, Any]]:
        """Resets the batch."""
        self._batch.reset(**({} if self._is_seeded else {"seed": seed}))
        return super().reset()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        """Steps the batch."""
        self._batch.step([action])
        return super().step(action)


def autoreset_mode(env: Any) -> str:
    """The value of a vector environment's `AutoresetMode`; empty where it does not say."""
    mode = (env.metadata or {}).get("autoreset_mode")
    return str(getattr(mode, "value", mode or ""))


def _info_of(infos: Any, row: int) -> dict[str, Any]:
    """A row's part of the keys that are read, from arrays with masks, or from dicts."""
    if not isinstance(infos, dict):
        return dict(infos[row] or {})
    return _part(infos, row, [key for key in INFO_KEYS if key in infos])


def _part(infos: Mapping[str, Any], row: int, keys: Sequence[str]) -> dict[str, Any]:
    part: dict[str, Any] = {}
    for key in keys:
        value, mask = infos[key], infos.get(f"_{key}")
        if mask is not None and not mask[row]:
            continue
        if isinstance(value, dict):
            part[key] = _part(value, row, [name for name in value if not name.startswith("_")])
        else:
            is_of_all = isinstance(value, (str, int, float))
            part[key] = value if is_of_all else value[row]
    return part
