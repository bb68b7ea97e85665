import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.core.errors import ConflictError, RejectedError
from minefleet_replay.state.deduplication import MAX_GAPS, MAX_STREAMS, WINDOW, ChunkNames, StreamNames
from minefleet_replay.storage.row_codec import names_row, read_names


@given(st.lists(st.integers(0, 40), unique=True, max_size=40))
def test_stream_names_know_exactly_what_was_sent(numbers: list[int]) -> None:
    names = StreamNames()
    for number in numbers:
        names = names.with_fragment(number, number // 3, checksum=number, last_append=0).with_episode(
            number, last_append=0
        )
    for number in range(50):
        assert names.knows_fragment(number, number) == (number in numbers)
        assert names.knows_episode(number) == (number in numbers)
        assert names.knows_sequence(number) == (number in numbers)
        assert names.knows_chunk(number) == (number in [one // 3 for one in numbers])
    assert all(left[1] < right[0] for left, right in zip(names.fragments, names.fragments[1:], strict=False))
    assert read_names(names_row(names)) == names


def test_a_name_with_other_bytes_is_refused_while_it_is_in_the_window_and_known_after() -> None:
    names = StreamNames()
    for sequence in range(WINDOW + 1):
        names = names.with_fragment(sequence, sequence, checksum=sequence, last_append=sequence)
    with pytest.raises(ConflictError):
        names.knows_fragment(1, checksum=99)
    assert names.knows_fragment(0, checksum=99)


def test_stream_names_with_too_many_gaps_refuse_another() -> None:
    names = StreamNames()
    for number in range(MAX_GAPS):
        names = names.with_fragment(2 * number, 0, 0, 0)
    with pytest.raises(RejectedError):
        names.with_fragment(2 * MAX_GAPS, 0, 0, 0)
    assert names.with_fragment(1, 0, 0, 0).knows_fragment(1, 0)


def test_chunk_names_forget_the_streams_that_were_silent_longest() -> None:
    names = ChunkNames({f"s{heard}": StreamNames(last_append=heard) for heard in reversed(range(MAX_STREAMS))})
    names.remember("s0", StreamNames(last_append=MAX_STREAMS))
    assert list(names.surplus(2)) == ["s1", "s2"]
    assert list(names.surplus(0)) == []
