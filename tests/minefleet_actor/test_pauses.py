"""When slots pause, rest, queue and are made anew, by a clock that is passed in."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minefleet_actor.pool.circuit_breaker import BACKOFF_S, MAX_BACKOFF_S, Breaker
from minefleet_actor.pool.pool_results import EnvGaveUpError
from minefleet_actor.pool.recycle_schedule import RecycleSchedule
from minefleet_actor.pool.start_limiter import StartLimiter


def test_pause_of_a_failed_slot_doubles_with_each_failure_in_a_row_up_to_a_limit() -> None:
    breaker = Breaker(2, max_consecutive_failures=100, circuit_breaker_cooldown_s=300.0)
    pauses = [breaker.fail([0], "why", 1000.0) - 1000.0 for _ in range(20)]
    expected = [min(BACKOFF_S * 2**n, MAX_BACKOFF_S) for n in range(20)]
    np.testing.assert_allclose(pauses, expected)
    assert breaker.until_s[1] == -np.inf


def test_circuit_breaker_opens_after_max_consecutive_failures_and_closes_after_a_good_episode() -> None:
    breaker = Breaker(2, max_consecutive_failures=3, circuit_breaker_cooldown_s=300.0)
    for _ in range(2):
        breaker.fail([0], "why", 0.0)
        assert breaker.cooling_down(0.0) == 0
    for tried_s in (0.0, 300.0, 700.0):
        assert breaker.cooling_down(tried_s) == 0
        assert breaker.fail([0], "why", tried_s) == tried_s + 300.0
        assert breaker.cooling_down(tried_s) == breaker.cooling_down(tried_s + 299.0) == 1
    breaker.succeed(np.array([0, 1]))
    assert breaker.fail([0], "why", 1000.0) == 1000.0 + BACKOFF_S
    assert breaker.cooling_down(1000.0) == 0


def test_circuit_breaker_gives_up_only_when_all_slots_are_open_at_the_same_time() -> None:
    breaker = Breaker(2, max_consecutive_failures=1, circuit_breaker_cooldown_s=10.0)
    breaker.fail([0], "why", 0.0)
    breaker.fail([1], "why", 20.0)
    with pytest.raises(EnvGaveUpError, match=r"all 2 slots fail; slot 0 failed 2 times .* the last time: because"):
        breaker.fail([0], "because", 25.0)


@given(limit=st.integers(0, 3), moves=st.lists(st.tuples(st.sampled_from("ec"), st.integers(0, 5)), max_size=60))
def test_start_limiter_admits_as_many_as_it_may_first_come_first_served(
    limit: int, moves: Iterable[tuple[str, int]]
) -> None:
    turnstile = StartLimiter(limit)
    inside: list[int] = []
    queue: list[int] = []
    for move, who in moves:
        if move == "e":
            if who not in inside + queue:
                queue.append(who)
            may_enter = who in inside or ((not limit or len(inside) < limit) and queue[0] == who)
            assert turnstile.enter(who) == may_enter
            if may_enter and who in queue:
                queue.remove(who)
                inside.append(who)
        else:
            turnstile.leave(who)
            inside, queue = [one for one in inside if one != who], [one for one in queue if one != who]
            while queue and (not limit or len(inside) < limit):
                assert turnstile.admit() == queue[0]
                inside.append(queue.pop(0))
            assert turnstile.admit() is None
        assert len(turnstile) == len(inside)


def test_start_limiter_counts_a_start_and_the_reset_after_it_once() -> None:
    turnstile = StartLimiter(1)
    assert [turnstile.enter(who) for who in (0, 1, 2)] == [True, False, False]
    turnstile.leave(0, comes_back=True)
    assert turnstile.enter(0)
    turnstile.leave(0)
    assert turnstile.admit() == 1
    assert not turnstile.enter(0)
    turnstile.leave(1)
    assert turnstile.admit() == 2


@example(1, 0.1, [2.0])
@given(st.integers(1, 70), st.floats(0.1, 1e5), st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20))
def test_recycle_schedule_makes_each_environment_due_once_per_interval_and_no_two_at_once(
    num_slots: int, interval_s: float, renewals_s: list[float]
) -> None:
    everyone = range(num_slots)
    wear = RecycleSchedule(num_slots, interval_s, now_s=0.0)
    for now_s in sorted(renewals_s):
        wear.renew(everyone, now_s)
        assert not wear.is_due(everyone, now_s).any()
        assert wear.is_due(everyone, now_s + interval_s * 1.001).all()
        halfway = wear.is_due(everyone, now_s + interval_s / 2)
        assert abs(halfway.sum() - num_slots / 2) <= 1


def test_recycle_schedule_without_an_interval_makes_only_expired_environments_due() -> None:
    wear = RecycleSchedule(3, 0.0, now_s=0.0)
    assert not wear.is_due(range(3), 1e9).any()
    wear.expire(range(1, 2))
    assert wear.is_due(range(3), 0.0).tolist() == [False, True, False]
    wear.renew(range(1, 2), 0.0)
    assert not wear.is_due(range(3), 1e9).any()
