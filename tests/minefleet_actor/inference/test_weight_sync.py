from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, CorruptError, FleetError, GaveUpError, NotFoundError, RunMismatchError
from minefleet.rpc.retrier import StoppedError
from minefleet.rpc.weights.version_info import VersionInfo
from minefleet_actor.inference.weight_sync import WeightsFollower


def info(version: int, run_id: str = "run", promoted: int = 0) -> VersionInfo:
    return VersionInfo(
        version=version,
        epoch=1,
        run_id=run_id,
        iteration=version,
        architecture="abc",
        tensors=1,
        size_bytes=8,
        publish_time=datetime.now(UTC),
        pinned=False,
        promoted=promoted or version,
    )


class Script:
    """Stands for the client: announces and answers what it is told, then asks to stop."""

    def __init__(self, *events: VersionInfo | FleetError) -> None:
        self.newest = info(0)
        self.faults: dict[int, FleetError] = {}
        self.fetched: list[int] = []
        self.running = 0
        self._events = events

    def watch(self) -> Generator[VersionInfo, None, None]:
        for event in self._events:
            if isinstance(event, FleetError):
                raise event
            self.newest = max(event, self.newest, key=lambda each: each.version)
            yield event
        raise StoppedError("over")

    def fetch(self, version: int = 0, *, canary: bool = False) -> tuple[VersionInfo, dict[str, NDArray[Any]]]:
        number = version or (self.newest.version if canary else self.newest.promoted)
        self.fetched.append(number)
        if number in self.faults:
            raise self.faults[number]
        return self.newest if number == self.newest.version else info(number), {"layer": np.full(1, number)}

    def runs(self, version: int) -> None:
        self.running = version


def follower_of(script: Script, *kinds: bool) -> WeightsFollower:
    return WeightsFollower(script, kinds or (False,))  # type: ignore[arg-type]


def staged_by(follower: WeightsFollower) -> list[tuple[int, int]]:
    """Each version that waits to be taken, with what its weights say."""
    return [(version, int(weights["layer"][0])) for weights, version in follower.take()]


def test_weights_follower_skips_versions_that_were_superseded_before_they_were_taken() -> None:
    follower = follower_of(Script(info(1), info(2), info(5)))
    follower.run(lambda: None)
    assert staged_by(follower) == [(5, 5)]
    assert not follower.take()


@pytest.mark.parametrize("fault", [NotFoundError("expired"), CorruptError("damaged")])
def test_weights_follower_passes_over_a_version_that_cannot_be_fetched(fault: FleetError) -> None:
    script = Script(info(1), info(2), info(3))
    script.faults[2] = fault
    follower = follower_of(script)
    follower.run(lambda: None)
    assert script.fetched == [1, 2, 3]
    assert staged_by(follower) == [(3, 3)]


def test_weights_follower_stages_no_weights_of_another_run() -> None:
    follower = follower_of(Script(info(1), info(7, run_id="other")))
    with pytest.raises(RunMismatchError, match="acts for run run, parameters now holds run other"):
        follower.run(lambda: None)
    assert staged_by(follower) == [(1, 1)]


def test_weights_follower_that_parameters_refuses_gives_up() -> None:
    with pytest.raises(GaveUpError, match="refuses this process: layer is missing"):
        follower_of(Script(ContractError("layer is missing"))).first()


@pytest.mark.parametrize(
    ("kinds", "staged", "fetched"),
    [((False, True), [(4, 4), (6, 6)], [4, 5, 6]), ((True,), [(6, 6)], [4, 5, 6]), ((False,), [(4, 4)], [4])],
    ids=["slots of both kinds", "canary slots", "no canary slot"],
)
def test_weights_follower_fetches_each_version_once_whoever_acts_by_it(
    kinds: tuple[bool, ...], staged: list[tuple[int, int]], fetched: list[int]
) -> None:
    script = Script(info(4), info(5, promoted=4), info(6, promoted=4))
    follower = follower_of(script, *kinds)
    follower.run(lambda: None)
    assert (staged_by(follower), script.fetched) == (staged, fetched)


def test_weights_follower_that_has_missed_a_promoted_version_fetches_it() -> None:
    script = Script(info(9, promoted=7))
    follower = follower_of(script, False, True)
    follower.run(lambda: None)
    assert (staged_by(follower), script.fetched) == ([(7, 7), (9, 9)], [9, 7])
