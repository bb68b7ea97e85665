"""The parity probe over real fleets: thousands of steps, and silence."""

import os
import signal
from collections.abc import Callable

import pytest
from tests.conftest import Fleet

from minefleet_learner.diagnostics.parity import BOUNDS

Train = Callable[..., Fleet]


@pytest.mark.soak
@pytest.mark.parametrize("wire", ["keep", "bfloat16"])
@pytest.mark.parametrize("preset", ["cartpole", "recall"])
def test_two_actors_one_of_which_dies_record_what_the_probe_expects(train: Train, preset: str, wire: str) -> None:
    fleet = train(
        preset,
        "policy.normalize_obs=true",
        f"train_config.wire_dtype={wire}",
        "rollout_config.num_rollout_workers=2",
        "stop.env_steps=60000",
    )
    for env_steps in (20_000, 40_000):
        fleet.wait_for_env_steps(env_steps)
        os.kill(fleet.pid("actor-1"), signal.SIGKILL)
    fleet.finish()
    probed = [row for row in fleet.rows() if row["parity_steps"]]
    assert sum(row["parity_steps"] for row in probed) > 5_000
    assert max(max(row["parity_logp"], row["parity_value"]) for row in probed) < BOUNDS["float32"]
    assert max(row["parity_unprobed"] for row in fleet.rows()) < 10
