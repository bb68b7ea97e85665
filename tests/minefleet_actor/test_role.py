"""Actor and evaluator as processes that parameters refuses."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minefleet.config import EnvConfig, FleetConfig, ServicesConfig
from minefleet.core.errors import EXIT_GAVE_UP
from minefleet.launch import ports
from minefleet.launch.env_policy_check import check_env_and_policy
from minefleet.policies import build
from minefleet.policies.weight_arrays import Weights, to_numpy
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run
from minefleet_actor.role import hosts_text

TIMEOUT_S = 120.0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = FleetConfig(env=EnvConfig(id="CartPole-v1"), eval_interval=1, services=ports.claim(ServicesConfig()))
    found = check_env_and_policy(config)
    run = Run(directory=tmp_path, config=config, schema=found.schema, architecture=found.architecture)
    run.write()
    return run


@pytest.fixture
def publish(run: Run) -> Iterator[Callable[[Weights], int]]:
    """Publishes the first version at a parameters process of the run."""
    command = [sys.executable, "-m", "minefleet_parameters", "--run-dir", str(run.directory)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with closing(ParametersClient(run.config.services.parameters.address, patience_s=TIMEOUT_S)) as learner:

        def publish_first(weights: Weights) -> int:
            learner.open_epoch("run")
            return learner.publish(weights, iteration=1)

        yield publish_first
    process.kill()
    process.wait()


@pytest.mark.parametrize("module", ["minefleet_actor", "minefleet_actor.evaluator"])
def test_actor_or_evaluator_whose_policy_differs_gives_up_and_names_the_tensors(
    run: Run, publish: Callable[[Weights], int], module: str
) -> None:
    wide = replace(run.config.policy, hidden_size=128)
    weights = to_numpy(build(wide, run.schema)) | {"extra": np.ones(1, np.float32)}
    assert publish(weights) == 1
    command = [sys.executable, "-m", module, "--run-dir", str(run.directory)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert refused.returncode == EXIT_GAVE_UP
    last_words = refused.stderr.splitlines()[-1]
    assert ": parameters refuses this process: the policy's architecture differs" in last_words
    assert "is float32[128, 4] in the run and float32[256, 4] here" in last_words


def test_hosts_are_named_with_their_slots_and_slots_without_one_are_counted() -> None:
    assert hosts_text({}, 4) == "hosts: none; 4 slots wait for one"
    assert hosts_text({"a": 3, "b": 1}, 4) == "hosts: a 3, b 1"
    assert hosts_text({f"h{number}": 1 for number in range(10)}, 12).endswith("h7 1, 2 more; 2 slots wait for one")
