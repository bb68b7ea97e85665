"""Whole fleets of which one stage is slow, and what they say of it."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import COMMAND, Fleet
from tests.proxy import Proxy
from tests.role_process import TIMEOUT_S, free_address

from minefleet.knobs import STAGE_WORDS
from minefleet.limit import CLEAR_GAIN, STAGES
from minefleet.status import look

CONFIG = str(Path(__file__).parent / "slow_stages.py")
ITERATIONS = 6
"""After which the stages have shown how slow they are."""
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


def named_by_row(row: dict[str, Any]) -> str:
    gains: dict[str, float] = row["limit_gain"]
    return max(gains, key=lambda stage: gains[stage]) if gains else ""


def named_by_prometheus(fleet: Fleet) -> str:
    address = json.loads((fleet.directory / "roles" / "learner.json").read_text())["metrics_address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
        found = re.findall(r'^minefleet_learner_limit_gain{stage="(\w+)"} (\S+)$', answer.read().decode(), re.MULTILINE)
    gains = {str(stage): float(gain) for stage, gain in found}
    assert gains.keys() == set(STAGES)
    return max(gains, key=lambda stage: gains[stage])


def everybody_names(fleet: Fleet, stage: str) -> bool:
    """Whether rows, metrics and status agree, once the fleet has got going."""
    rows = fleet.rows()
    return (
        len(rows) >= ITERATIONS
        and named_by_row(rows[-1]) == stage
        and named_by_prometheus(fleet) == stage
        and look(fleet.directory).to_dict()["limit"].get("stage") == stage
    )


def status(fleet: Fleet) -> dict[str, Any]:
    """What `minefleet status --json` prints."""
    command = [*COMMAND, "status", str(fleet.directory), "--json"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def assert_limited(fleet: Fleet, stage: str, *shares: str) -> None:
    """The stage is named everywhere, and most of the time goes to one of `shares`, of the slots or of the loop."""
    fleet.wait_for(lambda: everybody_names(fleet, stage))
    told = status(fleet)
    assert told["limit"]["stage"] == stage
    assert told["limit"]["gain"] >= CLEAR_GAIN
    assert told["advice"][0].startswith(STAGE_WORDS[stage])
    for share in shares:
        loop, _, name = share.partition(".")
        parts = told["verdict"][loop]
        assert parts[name] == max(parts.values()), parts


def test_slow_environments_limit(train: Train) -> None:
    assert_limited(train(CONFIG, "env.kwargs.step_s=0.03"), "environment", "slots.environment", "loop.fragments")


def test_slow_inference_limits(train: Train) -> None:
    assert_limited(train(CONFIG, "policy.kwargs.pass_s=0.03"), "inference", "slots.inference", "loop.fragments")


def test_a_slow_learner_limits(train: Train) -> None:
    fleet = train(CONFIG, f"trainer_name={CONFIG}:SlowTrainer")
    assert_limited(fleet, "learner", "slots.grant", "loop.training")


def test_a_slow_way_to_replay_limits(train: Train) -> None:
    with between("replay") as (proxy, settings):
        proxy.bytes_per_s = SLOW_LINK_BYTES_PER_S
        fleet = train(CONFIG, *settings)
        assert_limited(fleet, "replay", "slots.room")


def test_a_slow_way_to_parameters_limits(train: Train) -> None:
    with between("parameters") as (proxy, settings):
        proxy.delay_s = SLOW_LINK_S
        fleet = train(CONFIG, "rollout_config.replay_buffer_config.max_staleness=0", *settings)
        assert_limited(fleet, "weights")
