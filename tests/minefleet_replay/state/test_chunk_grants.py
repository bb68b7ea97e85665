import pytest

from minefleet_replay.state.chunk_grants import FIRST_HINT_S, MAX_HINT_S, MIN_HINT_S, RateLimiter, RetryAfter
from minefleet_replay.state.deduplication import ChunkName

STEPS = 8


def pacing(capacity_chunks: int = 2, *, enabled: bool = True) -> RateLimiter:
    return RateLimiter(capacity_steps=capacity_chunks * STEPS, grant_timeout_s=60.0, enabled=enabled)


def name(number: int) -> ChunkName:
    return ChunkName("s", number)


def test_rate_limiter_grants_until_held_and_granted_chunks_fill_the_room() -> None:
    grants = pacing(capacity_chunks=3)
    assert [grants.reserve(name(number), STEPS, STEPS, now=0) for number in range(4)] == [True, True, False, False]
    assert grants.granted_chunks == 2


def test_rate_limiter_grants_one_chunk_for_any_room_that_is_left() -> None:
    grants = pacing(capacity_chunks=2)
    assert [grants.reserve(name(number), STEPS, STEPS + 7, now=0) for number in range(2)] == [True, False]
    assert (grants.coming_steps, grants.free_steps(0)) == (STEPS, STEPS)


def test_an_incomplete_chunk_keeps_room_for_what_it_lacks() -> None:
    grants = pacing(capacity_chunks=1)
    grants.reserve(name(0), STEPS, 0, now=0)
    grants.begin(name(0), STEPS - 3, 3, now=0)
    assert (grants.coming_steps, grants.free_steps(5)) == (3, 0)
    grants.end_chunk(name(0))
    assert (grants.coming_steps, grants.free_steps(5)) == (0, 3)


def test_a_granted_chunk_is_granted_again_without_taking_more_room() -> None:
    grants = pacing(capacity_chunks=1)
    assert grants.reserve(name(0), STEPS, 0, now=0)
    assert grants.reserve(name(0), STEPS, 0, now=1)
    assert not grants.reserve(name(1), STEPS, 0, now=1)


def test_a_grant_expires_by_silence_and_is_kept_by_asking_again() -> None:
    grants = pacing()
    grants.reserve(name(0), STEPS, 0, now=0)
    grants.reserve(name(1), STEPS, 0, now=0)
    grants.reserve(name(0), STEPS, 0, now=50)
    assert grants.expire(now=61) == []
    assert grants.granted_chunks == 1
    grants.expire(now=110)
    assert grants.granted_chunks == 0


def test_a_grant_takes_as_much_room_as_its_stream_can_fill_by_now() -> None:
    grants = pacing(capacity_chunks=1)
    grants.reserve(name(0), STEPS, 0, now=0)
    grants.reserve(name(0), 3, 0, now=1)
    assert grants.free_steps(0) == STEPS - 3
    grants.reserve(name(0), 2 * STEPS, 0, now=2)
    assert grants.free_steps(0) == 0
    grants.reserve(name(0), 6, 0, now=3)
    grants.begin(name(0), 3, 7, now=3)
    assert grants.coming_steps == 3
    grants.renew(name(0), 2, now=4)
    assert grants.coming_steps == 2
    grants.renew(name(0), STEPS, now=5)
    assert grants.coming_steps == STEPS - 3


def test_what_is_late_takes_no_room_but_is_still_granted() -> None:
    grants = pacing(capacity_chunks=2)
    grants.reserve(name(0), STEPS, 0, now=0)
    grants.reserve(name(1), STEPS, 0, now=0)
    grants.begin(name(1), 5, 3, now=5)
    grants.reserve(name(0), STEPS, 0, now=50)
    grants.give_up(moment=5)
    assert (grants.coming_steps, grants.has_granted(name(0))) == (3, True)
    grants.give_up(moment=6)
    assert grants.coming_steps == 0
    assert grants.reserve(name(0), STEPS, 0, now=51)
    assert grants.coming_steps == 0
    assert grants.expire(now=70) == [name(1)]


def test_an_incomplete_chunk_is_reported_once_nobody_works_on_it() -> None:
    grants = pacing()
    grants.reserve(name(0), STEPS, 0, now=0)
    grants.begin(name(0), STEPS - 3, 3, now=10)
    assert grants.granted_chunks == 0
    grants.renew(name(0), STEPS, now=60)
    assert grants.expire(now=119) == []
    assert grants.expire(now=120) == [name(0)]
    grants.end_chunk(name(0))
    assert grants.expire(now=999) == []


def test_rate_limiter_that_is_switched_off_grants_everything_and_keeps_no_grant() -> None:
    grants = pacing(capacity_chunks=1, enabled=False)
    assert all(grants.reserve(name(number), STEPS, 10 * STEPS, now=0) for number in range(5))
    assert grants.granted_chunks == 0


def test_retry_after_is_a_small_share_of_the_time_between_leases() -> None:
    hint = RetryAfter()
    assert hint.retry_after_s == FIRST_HINT_S
    hint.room_was_made(10.0)
    hint.room_was_made(10.8)
    assert hint.retry_after_s == pytest.approx(0.1)
    hint.room_was_made(100.0)
    assert hint.retry_after_s == MAX_HINT_S
    hint.room_was_made(100.001)
    assert hint.retry_after_s == MIN_HINT_S
