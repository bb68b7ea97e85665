"""Follows the newest weights in the background.

    parameters ── announcements ──▶ fetch ──▶ staged ── take ──▶ loop

Canary slots take the newest version, the others the newest one that is promoted, which the former had before.
This thread fills `staged` with the newest version it could fetch; the loop empties it between batches. Versions that
were superseded before they were taken are skipped.
"""

import logging
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TypeAlias

from minefleet.core.errors import ContractError, CorruptError, GaveUpError, NotFoundError, RunMismatchError
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.retrier import StoppedError
from minefleet.rpc.weights.manifest import Weights
from minefleet.rpc.weights.version_info import VersionInfo

logger = logging.getLogger(__name__)


Staged: TypeAlias = Sequence[tuple[Weights, int]]
"""Weights with their versions: those of all slots; or of slots that are no canaries, and of canaries."""


class WeightsFollower:
    """The newest version, fetched ahead of its use."""

    def __init__(self, parameters: ParametersClient, kinds: Collection[bool] = (False,)) -> None:
        """Stores its arguments. `kinds`: whether slots are canaries; of both kinds where there are both."""
        self.run_id = ""
        self._parameters = parameters
        self._kinds = kinds
        self._held: dict[int, Weights] = {}
        """By version, what canary slots have had and the others may have next."""
        self._staged: Staged = ()
        self.settings = self._staged_settings = ""
        """Live settings of the newest version that was taken, or is staged: JSON."""
        self._fetched = 0
        self._lock = threading.Lock()

    def act_for(self, kinds: Collection[bool]) -> None:
        """Has slots of these kinds from now on; stages their versions where they are others."""
        if kinds != self._kinds:
            self._kinds = kinds
            self.fetch()

    def take(self) -> Staged:
        """Returns newer weights once, if there are any."""
        with self._lock:
            staged, self._staged = self._staged, ()
            self.settings = self._staged_settings
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
        info, weights = self._parameters.fetch(canary=True in self._kinds)
        if self.run_id not in ("", info.run_id):
            raise RunMismatchError(f"this actor acts for run {self.run_id}, parameters now holds run {info.run_id}")
        staged: list[tuple[Weights, int]] = [(weights, info.version)]
        if len(self._kinds) > 1:
            self._held[info.version] = weights
            promoted = self._held.get(info.promoted) or self._parameters.fetch(info.promoted)[1]
            self._held = {version: held for version, held in self._held.items() if version >= info.promoted}
            staged.insert(0, (promoted, info.promoted))
        with self._lock:
            self.run_id = info.run_id
            self._staged, self._staged_settings = staged, info.settings
        self._fetched = info.version
        return info

    def run(self, staged: Callable[[], None]) -> None:
        """Follows until this process is asked to stop; calls `staged` whenever weights wait to be taken."""
        try:
            for news in announced(self._parameters):
                if self._fetched != (news.version if True in self._kinds else news.promoted):
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
