"""A whole fleet of which one stage after another is made slow, and what it says of each."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import COMMAND, Fleet
from tests.proxy import Proxy
from tests.role_process import free_address
from tests.slow_stages import DELAYS

from minefleet.core.atomic_files import write_whole

pytestmark = pytest.mark.fleet

CONFIG = str(Path(__file__).parent / "slow_stages.py")
ITERATIONS = 6
"""After which a stage has shown how slow it is."""
SLOW_LINK_BYTES_PER_S = 300_000
SLOW_LINK_S = 0.25

Train = Callable[..., Fleet]


@contextmanager
def between(service: str) -> Iterator[tuple[Proxy, list[str]]]:
    """A proxy before a service, and the settings that lead everybody through it."""
    listen = free_address()
    with Proxy(listen) as proxy:
        if service == "replay":
            yield proxy, [f"services.replay=[{{address: '{proxy.address}', listen: '{listen}'}}]"]
        else:
            yield proxy, [f"services.{service}.address={proxy.address}", f"services.{service}.listen={listen}"]


def status(fleet: Fleet) -> dict[str, Any]:
    """The output of `minefleet status --json`."""
    command = [*COMMAND, "status", str(fleet.directory), "--json"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def is_limited(fleet: Fleet, stage: str, shares: Sequence[str]) -> bool:
    """Whether status names the stage, and most of the time goes to each of the shares."""
    told = status(fleet)["bottleneck"]
    parts = [(told[loop], name) for loop, name in (share.split(".") for share in shares)] if told else []
    return told.get("stage") == stage and all(part[name] == max(part.values()) for part, name in parts)


def wait_until_limited(fleet: Fleet, stage: str, *shares: str) -> None:
    """Waits until it is said; `shares` are of the slots or of the loop."""
    seen = len(fleet.rows())
    fleet.wait_for(lambda: len(fleet.rows()) >= seen + ITERATIONS and is_limited(fleet, stage, shares))


def test_fleet_names_whichever_stage_is_made_slow(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = tmp_path / "delays.json"
    monkeypatch.setenv(DELAYS, str(delays))

    def slow(**seconds: float) -> None:
        write_whole(delays, json.dumps(seconds))

    with between("replay") as (to_replay, first), between("parameters") as (to_parameters, second):
        slow(step_s=0.03)
        fleet = train(CONFIG, *first, *second)
        wait_until_limited(fleet, "environment", "slots.environment", "loop.fragments")
        slow(pass_s=0.03)
        wait_until_limited(fleet, "inference", "slots.inference", "loop.fragments")
        slow(update_s=1.5)
        wait_until_limited(fleet, "learner", "slots.grant", "loop.training")
        slow()
        to_parameters.delay_s = SLOW_LINK_S
        wait_until_limited(fleet, "weights")
        to_parameters.delay_s = 0.0
        to_replay.bytes_per_s = SLOW_LINK_BYTES_PER_S
        wait_until_limited(fleet, "replay")
