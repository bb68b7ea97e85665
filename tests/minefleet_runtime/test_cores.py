import os

import pytest

from minefleet.launch.placement import ProcessPlacement
from minefleet_runtime.process_setup import all_cores


def test_a_process_that_is_tied_to_a_core_knows_those_of_its_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ProcessPlacement(cores=(1,), all_cores=(0, 1, 5)).variables.items():
        monkeypatch.setenv(name, value)
    assert all_cores() == {0, 1, 5}


def test_process_without_a_number_of_cores_has_those_on_which_it_runs() -> None:
    assert all_cores() == os.sched_getaffinity(0)
