import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minefleet_actor.forecast import Forecast, patience_s

SECONDS = st.floats(-1.0, 12.0)


def cost_s(start_s: float, ready: int, pass_s: float, due_s: list[float]) -> float:
    """What waiting costs those that are ready, less what it saves those that come in time, by definition."""
    came = [max(due, 0.0) for due in due_s if due < pass_s and due <= start_s]
    return ready * start_s + sum(start_s - due for due in came) - sum(pass_s - due for due in came)


@given(ready=st.integers(1, 8), pass_s=st.floats(0.1, 10.0), due_s=st.lists(SECONDS, max_size=6))
def test_the_patience_is_the_one_with_which_environments_wait_least(
    ready: int, pass_s: float, due_s: list[float]
) -> None:
    choices = [0.0, *(due for due in due_s if 0 < due < pass_s)]
    best_s = min(cost_s(choice, ready, pass_s, due_s) for choice in choices)
    chosen_s = patience_s(ready, pass_s, np.array(due_s))
    assert cost_s(chosen_s, ready, pass_s, due_s) <= best_s + 1e-9


def test_nobody_is_waited_for_where_a_pass_costs_nothing() -> None:
    assert patience_s(3, 0.0, np.array([0.001, 0.002])) == 0.0


def test_an_environment_is_expected_after_the_time_that_its_steps_take() -> None:
    forecast, slot, other = Forecast(3), np.array([0]), np.array([1])
    forecast.stepped(slot, 10.0)
    forecast.answered(slot, 10.5)
    forecast.stepped(slot, 11.0)
    forecast.stepped(other, 11.0)
    assert forecast.patience_s(1, 5.0, 11.2) == 11.5 - 11.2
    assert forecast.patience_s(1, 5.0, 11.4999) <= 0.5
    assert forecast.patience_s(100, 5.0, 11.2) == 0.0


def test_one_that_is_overdue_is_not_waited_for_for_ever() -> None:
    forecast, slot = Forecast(1), np.array([0])
    for began_s in (0.0, 1.0):
        forecast.stepped(slot, began_s)
        forecast.answered(slot, began_s + 0.5)
    forecast.stepped(slot, 10.0)
    assert forecast.patience_s(1, 0.1, 10.47) > 0
    assert forecast.patience_s(1, 0.1, 10.6) == 0.0
