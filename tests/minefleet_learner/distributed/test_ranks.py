"""Several ranks in real processes against one rank on the same fragments, in float64."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minefleet.core.errors import ConfigError
from minefleet.core.tree import flatten
from minefleet.launch.ports import free_port
from minefleet_learner.distributed.ranks import join

SCRIPT = Path(__file__).parents[1] / "rank_process.py"
TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results that a rank leaves."""

    weights: Mapping[str, NDArray[Any]]
    said: dict[str, Any]


def run_ranks(directory: Path, size: int) -> list[Outcome]:
    """Runs so many ranks to their end."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1")), "WORLD_SIZE": str(size)}
    command = [sys.executable, "-W", "error", str(SCRIPT), str(directory), str(size)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    errors = [process.communicate(timeout=TIMEOUT_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, "\n".join(errors)
    return [
        Outcome(
            weights=dict(np.load(directory / f"{size}-{rank}.npz")),
            said=json.loads((directory / f"{size}-{rank}.json").read_text()),
        )
        for rank in range(size)
    ]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_ranks(tmp_path_factory.mktemp("one"), 1)[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return run_ranks(tmp_path_factory.mktemp("two"), 2)


def test_two_ranks_train_the_weights_and_statistics_of_one_on_the_same_fragments(
    one: Outcome, two: list[Outcome]
) -> None:
    assert len({name.split("/")[0] for name in one.weights}) == 6
    for name, expected in one.weights.items():
        np.testing.assert_allclose(two[0].weights[name], expected, rtol=1e-9, atol=1e-9, err_msg=name)


def test_ranks_hold_weights_of_the_same_bits(two: list[Outcome]) -> None:
    for name, array in two[0].weights.items():
        assert array.tobytes() == two[1].weights[name].tobytes(), name


def test_two_ranks_report_what_one_does(one: Outcome, two: list[Outcome]) -> None:
    reports = one.said["reports"]
    assert len(reports) == 12
    # Ranks that differed in where they stop would wait for each other for ever.
    assert 0 < reports["KL stop 0"]["optimizer_steps"] < 16
    for of_rank in two:
        for name, report in reports.items():
            assert flatten(of_rank.said["reports"][name]) == pytest.approx(
                flatten(report), rel=1e-9, abs=1e-9, nan_ok=True
            ), name


def test_a_poisoned_batch_on_one_of_two_ranks_is_left_out_on_both_and_training_goes_on(two: list[Outcome]) -> None:
    for of_rank in two:
        before, poisoned, after = of_rank.said["poisoned"]["left out"]
        assert before["skipped"] == after["skipped"] == 0 and before["trained"] and after["trained"]
        assert poisoned == {"skipped": 1, "trained": []}


def test_a_gradient_that_is_not_finite_on_one_of_two_ranks_takes_the_step_from_both(two: list[Outcome]) -> None:
    for of_rank in two:
        before, poisoned, after = of_rank.said["poisoned"]["gradients"]
        assert before["skipped"] == after["skipped"] == 0
        assert poisoned["skipped"] == 2
        assert "encoder" not in poisoned["trained"] and "encoder" in after["trained"]


def test_ten_bad_steps_in_a_row_stop_both_ranks_and_name_the_fragment_of_one(two: list[Outcome]) -> None:
    ends = [of_rank.said["poisoned"]["end"] for of_rank in two]
    assert ends[0] == ends[1]
    assert ends[0].startswith("10 optimizer steps in a row were not finite; the last fragments: s3/1, s3/2;")


def test_gradients_of_ranks_equal_those_of_ddp(two: list[Outcome]) -> None:
    assert all(of_rank.said["ddp"] < 1e-15 for of_rank in two)
    assert not any(math.isnan(of_rank.said["ddp"]) for of_rank in two)


def test_ranks_that_nobody_started_are_asked_for_with_the_command_that_does() -> None:
    with pytest.raises(ConfigError, match=r"num_workers=3, but 1 ranks were started .*torchrun --nproc-per-node 3"):
        join(3, 1.0, torch.device("cpu"))
