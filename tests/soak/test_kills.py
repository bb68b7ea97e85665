"""Kills at full length: the run ends by itself, at the same bar."""

import os
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.conftest import Fleet

pytestmark = pytest.mark.soak

ENV_STEPS = 200_000
ROLES = ("actor-0", "replay", "learner", "parameters")
COUNTERS = ("iteration", "env_steps", "trained_steps", "policy_version", "episodes")


@pytest.mark.parametrize("first", range(4))
def test_cartpole_balances_although_each_role_was_killed(
    train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]], first: int
) -> None:
    fleet = train("cartpole", f"seed={first + 1}")
    for count in range(4):
        fleet.wait_for_env_steps(ENV_STEPS * (count + 1) // 5)
        os.kill(fleet.pid(ROLES[(first + count) % 4]), signal.SIGKILL)
    assert fleet.finish()["stopped_by"] == "env_steps"
    assert evaluate(fleet.directory, 100)["return_mean"] >= 475
    for before, after in pairwise(fleet.rows()):
        assert all(after[name] >= before[name] for name in COUNTERS)
