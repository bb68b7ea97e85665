"""Follows the newest weights in the background.

    parameters ── announcements ──▶ fetch ──▶ staged ── take ──▶ loop

This thread fills `staged` with the newest version it could fetch; the loop empties it between batches. Versions that
were superseded before they were taken are skipped.
"""

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from minefleet.core.errors import ContractError, CorruptError, GaveUpError, NotFoundError, RunMismatchError
from minefleet.rpc.channel import StoppedError
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.weights_version import VersionInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    """Weights that wait to be taken."""

    info: VersionInfo
    weights: Mapping[str, NDArray[Any]]


class WeightsFollower:
    """The newest version, fetched ahead of its use."""

    def __init__(self, parameters: ParametersClient) -> None:
        self.run_id = ""
        self._parameters = parameters
        self._staged: Staged | None = None
        self._fetched = 0
        self._lock = threading.Lock()

    def take(self) -> Staged | None:
        """Returns newer weights once, if there are any."""
        with self._lock:
            staged, self._staged = self._staged, None
        return staged

    def runs(self, version: int) -> None:
        """Sets the version that is used from now on."""
        self._parameters.runs(version)

    def first(self) -> VersionInfo:
        """Waits until a version is published, stages it and returns it.

        Raises:
            GaveUpError: If it is of another architecture than this actor's policy.
        """
        next(announced(self._parameters))
        return self.fetch()

    def fetch(self) -> VersionInfo:
        """Fetches the newest version, stages it and returns it.

        Raises:
            RunMismatchError: If parameters turned to another run.
        """
        info, weights = self._parameters.fetch()
        if self.run_id not in ("", info.run_id):
            raise RunMismatchError(f"this actor acts for run {self.run_id}, parameters now holds run {info.run_id}")
        with self._lock:
            self.run_id = info.run_id
            self._staged = Staged(info, weights)
        self._fetched = info.version
        return info

    def run(self, staged: Callable[[], None]) -> None:
        """Follows until this process is asked to stop; calls `staged` whenever weights wait to be taken."""
        try:
            for news in announced(self._parameters):
                if news.version != self._fetched:
                    self._fetch_if_there(staged)
        except StoppedError:
            return

    def _fetch_if_there(self, staged: Callable[[], None]) -> None:
        try:
            self.fetch()
            staged()
        except (NotFoundError, CorruptError) as error:
            logger.warning("the newest weights cannot be had, the next ones will do: %s", error)


def announced(parameters: ParametersClient) -> Generator[VersionInfo, None, None]:
    """Watches for a process that is of no use without these weights.

    Raises:
        GaveUpError: If they are of another architecture than its policy; another start would not change that.
    """
    try:
        yield from parameters.watch()
    except ContractError as error:
        raise GaveUpError(f"parameters refuses this process: {error}") from error
