"""Growth of counters over the last seconds, by a clock that is passed in."""

import pytest

from minefleet_runtime.counter_window import WINDOW_S, Recent


class Counted:
    """Two counters and a clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.now_s = 1000.0
        self.seconds = {"a": 5.0, "b": 0.0}
        self.recent = Recent(lambda: self.seconds, lambda: self.now_s, window_s)

    def grow(self, name: str, seconds: float) -> dict[str, float]:
        """Lets time pass and go to one of them."""
        self.now_s += seconds
        self.seconds = self.seconds | {name: self.seconds[name] + seconds}
        return self.recent.grown()


@pytest.mark.parametrize("window_s", [WINDOW_S, 10.0])
def test_counter_window_leaves_out_growth_of_longer_ago(window_s: float) -> None:
    counted = Counted(window_s)
    for _ in range(100):
        counted.grow("a", 1.0)
    for _ in range(int(window_s)):
        grown = counted.grow("b", 1.0)
    assert grown == {"a": 0.0, "b": window_s}


def test_counter_window_read_seldom_covers_all_since_the_last_read() -> None:
    counted = Counted()
    assert counted.grow("a", 300.0) == {"a": 300.0, "b": 0.0}
    assert counted.grow("b", 200.0) == {"a": 0.0, "b": 200.0}


def test_counter_window_read_often_still_covers_the_whole_window() -> None:
    counted = Counted()
    for _ in range(1000):
        grown = counted.grow("a", 0.1)
    assert WINDOW_S <= grown["a"] <= WINDOW_S + 2.0
