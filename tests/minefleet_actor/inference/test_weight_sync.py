from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, CorruptError, FleetError, GaveUpError, NotFoundError, RunMismatchError
from minefleet.rpc.channel import StoppedError
from minefleet.rpc.weights.weights_version import VersionInfo
from minefleet_actor.inference.weight_sync import WeightsFollower


def info(version: int, run_id: str = "run") -> VersionInfo:
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

    def fetch(self) -> tuple[VersionInfo, dict[str, NDArray[Any]]]:
        self.fetched.append(self.newest.version)
        if self.newest.version in self.faults:
            raise self.faults[self.newest.version]
        return self.newest, {"layer": np.full(1, self.newest.version)}

    def runs(self, version: int) -> None:
        self.running = version


def follower_of(script: Script) -> WeightsFollower:
    return WeightsFollower(script)  # type: ignore[arg-type]


def test_weights_follower_skips_versions_that_were_superseded_before_they_were_taken() -> None:
    follower = follower_of(Script(info(1), info(2), info(5)))
    follower.run(lambda: None)
    staged = follower.take()
    assert staged is not None
    assert (staged.info.version, staged.weights["layer"][0]) == (5, 5)
    assert follower.take() is None


@pytest.mark.parametrize("fault", [NotFoundError("expired"), CorruptError("damaged")])
def test_weights_follower_passes_over_a_version_that_cannot_be_fetched(fault: FleetError) -> None:
    script = Script(info(1), info(2), info(3))
    script.faults[2] = fault
    follower = follower_of(script)
    follower.run(lambda: None)
    assert script.fetched == [1, 2, 3]
    staged = follower.take()
    assert staged is not None
    assert staged.info.version == 3


def test_weights_follower_stages_no_weights_of_another_run() -> None:
    follower = follower_of(Script(info(1), info(7, run_id="other")))
    with pytest.raises(RunMismatchError, match="acts for run run, parameters now holds run other"):
        follower.run(lambda: None)
    staged = follower.take()
    assert staged is not None
    assert staged.info.version == 1


def test_weights_follower_that_parameters_refuses_gives_up() -> None:
    with pytest.raises(GaveUpError, match="refuses this process: layer is missing"):
        follower_of(Script(ContractError("layer is missing"))).first()
