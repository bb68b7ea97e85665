"""Environments that fail for long, and actors that are killed over them: the long versions of `test_faulty_fleet`."""

from pathlib import Path

import pytest
from tests.test_actor_faults import hurt_it_all
from tests.test_faulty_fleet import kill_again_and_again

from actor_faulty import fault_rates, problems_of, stretch

pytestmark = pytest.mark.soak


def test_faulty_environments_for_five_minutes_store_nothing_bad_and_leak_nothing() -> None:
    found = stretch(32, fault_rates(), 300.0)
    assert problems_of("faulty", found) == []
    assert found.audit.failures.total() > 100


def test_twenty_kills_leave_no_process_and_no_step_twice(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 20)


@pytest.mark.timeout(1200)
def test_actor_steps_are_stored_once_and_in_order_after_two_minutes_of_each_standstill(tmp_path: Path) -> None:
    hurt_it_all(tmp_path, 120.0)
