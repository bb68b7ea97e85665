"""The long versions of `test_churn`: every order of the four roles, a replay that comes late, 4 to 1 to 8 actors."""

from itertools import permutations
from pathlib import Path

import pytest
from tests.test_churn import ROLES, begin, come_and_go

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("order", list(permutations(ROLES)), ids="-".join)
def test_a_run_begins_in_every_order_of_its_roles(tmp_path: Path, order: tuple[str, ...]) -> None:
    begin(tmp_path, order)


def test_a_run_begins_although_replay_comes_a_minute_after_the_others(tmp_path: Path) -> None:
    begin(tmp_path, ("parameters", "learner", "actor", "replay"), pause_s=20.0)


def test_four_actors_become_one_and_then_eight(tmp_path: Path) -> None:
    come_and_go(tmp_path, 4, 8)
