from random import Random

import pytest

from minefleet.rpc.replay_types import Order
from minefleet_replay.state.chunk import NO_LOCATION, Chunk, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.index import Index


def fragment(
    sequence: int,
    number: int,
    version: int = 1,
    chunk: tuple[int, int] | None = None,
    closes: bool = True,
    steps: int = 1,
) -> FragmentEntry:
    """A fragment; `chunk` is the number of its chunk and where that starts: by default it has one of its own."""
    return FragmentEntry(
        sequence, number, 10, version, version, steps, *(chunk or (sequence, sequence)), closes, NO_LOCATION
    )


def index_of(versions: list[int], max_reuse: int = 1) -> Index:
    """One chunk of one fragment per version."""
    index = Index(max_reuse=max_reuse)
    for number, version in enumerate(versions):
        index.add(ChunkName("s", number), fragment(number, number, version))
    return index


def choose(index: Index, count: int, order: Order = "oldest", oldest_version: int = 0, seed: int = 0) -> list[int]:
    return [chunk.id for chunk in index.choose(count, order, oldest_version, Random(seed))]


def test_of_chunks_of_one_version_the_first_to_begin_is_chosen_first() -> None:
    index = Index(max_reuse=2)
    begun = [(2, 3.0), (2, 1.0), (1, 9.0), (2, 1.0), (2, 0.5)]
    for number, (version, began_at) in enumerate(begun):
        index.add(ChunkName("s", number), fragment(number, number, version), began_at)
    assert choose(index, 5) == [2, 4, 1, 3, 0]
    index.charge(index[4], leases=1)
    assert choose(index, 4) == [2, 4, 1, 3]
    assert set(choose(index, 4, "least_used")) == {0, 1, 2, 3}
    loaded = Index(max_reuse=2)
    rows = [(ChunkName("s", number), fragment(number, number, version)) for number, (version, _) in enumerate(begun)]
    loaded.load(rows, {}, {}, 7.0)
    assert choose(loaded, 5) == [2, 0, 1, 3, 4]


def test_a_chunk_is_whole_when_all_its_fragments_are_there_in_whatever_order_they_came() -> None:
    index = Index(max_reuse=1)
    for number, sequence in enumerate((5, 3, 4)):
        assert choose(index, 1) == []
        index.add(ChunkName("s", 1), fragment(sequence, number, chunk=(1, 3), closes=sequence == 5))
    assert [one.sequence for one in index[0].fragments] == [3, 4, 5]
    assert choose(index, 1) == [0]


def test_a_chunk_without_its_first_or_its_last_fragment_is_not_whole() -> None:
    index = Index(max_reuse=1)
    index.add(ChunkName("s", 0), fragment(1, 0, chunk=(0, 0)))
    index.add(ChunkName("t", 1), fragment(2, 1, chunk=(1, 2), closes=False))
    assert choose(index, 1) == []
    index.add(ChunkName("s", 0), fragment(0, 2, chunk=(0, 0), closes=False))
    assert choose(index, 1) == [0]


def test_least_used_takes_the_fewest_uses_first_then_the_oldest() -> None:
    index = index_of([1] * 6, max_reuse=3)
    index.charge(index[0], uses=1)
    index.charge(index[1], leases=1)
    index.charge(index[3], uses=1, leases=1)
    assert sorted(choose(index, 3, "least_used")) == [2, 4, 5]
    assert sorted(choose(index, 5, "least_used")) == [0, 1, 2, 4, 5]
    index.charge(index[1], leases=-1)
    assert sorted(choose(index, 1, "least_used")) == [1]


@pytest.mark.parametrize("order", ["least_used", "oldest"])
def test_index_chooses_the_oldest_version_first_however_late_it_arrived(order: Order) -> None:
    index = index_of([3, 2, 2, 1])
    assert sorted(choose(index, 1, order)) == [3]
    assert sorted(choose(index, 2, order)) == [1, 3]


@pytest.mark.parametrize("order", ["least_used", "uniform", "oldest"])
def test_chunks_are_taken_until_their_steps_are_enough(order: Order) -> None:
    index = Index(max_reuse=1)
    for number, steps in enumerate((5, 1, 3, 8, 2)):
        index.add(ChunkName("s", number), fragment(number, number, steps=steps))
    for wanted in range(1, 20):
        chosen = index.choose(wanted, order, 0, Random(wanted))
        taken = [chunk.steps for chunk in chosen]
        assert sum(taken) >= wanted > sum(taken) - max(taken)
    assert choose(index, 20, order) == []
    assert (index.steps, index.usable_steps) == (19, 19)


def test_least_used_shuffles_within_the_lease_and_oldest_does_not() -> None:
    index = index_of([1] * 50)
    assert choose(index, 50, "oldest") == list(range(50))
    assert choose(index, 50, "least_used") != list(range(50))
    assert sorted(choose(index, 50, "least_used")) == list(range(50))


def test_uniform_takes_every_chunk_alike_and_none_twice() -> None:
    index = index_of([1] * 4)
    taken = [choose(index, 2, "uniform", seed=seed) for seed in range(400)]
    assert all(len(set(pair)) == 2 for pair in taken)
    counts = [sum(number in pair for pair in taken) for number in range(4)]
    assert min(counts) > 150


@pytest.mark.parametrize("order", ["least_used", "uniform", "oldest"])
def test_chunks_that_are_spent_leased_out_or_too_old_are_passed_over(order: Order) -> None:
    index = index_of([1, 2, 3, 4], max_reuse=2)
    index.charge(index[2], uses=1, leases=1)
    assert sorted(choose(index, 2, order, oldest_version=2)) == [1, 3]
    assert len(choose(index, 3, order, oldest_version=2)) < 3


def test_older_than_names_unleased_chunks_by_their_oldest_fragment() -> None:
    index = Index(max_reuse=1)
    index.add(ChunkName("s", 0), fragment(0, 0, version=5, chunk=(0, 0), closes=False))
    index.add(ChunkName("s", 0), fragment(1, 1, version=3, chunk=(0, 0)))
    index.add(ChunkName("t", 0), fragment(0, 2, version=3))
    index.charge(index[2], leases=1)

    def older(version: int) -> list[Chunk]:
        return index.older_than(version)

    assert older(3) == []
    assert older(4) == [index[0]]


def test_a_corrupt_fragment_keeps_its_chunk_from_being_leased() -> None:
    index = index_of([1, 1])
    index.mark_corrupt(index[0], index[0].fragments[0])
    assert choose(index, 1) == [1]
    assert index[0].sound == (0, 0)


def test_index_without_its_removed_chunks_is_empty() -> None:
    index = index_of([1, 2, 3])
    for chunk in list(index):
        index.remove(chunk)
    assert (len(index), index.payload_bytes, index.older_than(9), choose(index, 1)) == (0, 0, [], [])


def test_index_loaded_from_rows_equals_the_one_that_grew() -> None:
    grown, loaded = (Index(max_reuse=2) for _ in range(2))
    rows = [
        (
            ChunkName("s", sequence // 2),
            fragment(sequence, number, chunk=(sequence // 2, sequence // 2 * 2), closes=sequence % 2 == 1),
        )
        for number, sequence in enumerate((3, 0, 2, 1, 4))
    ]
    for name, one in rows:
        grown.add(name, one)
    grown.charge(grown[1], uses=1)
    grown.charge(grown[0], leases=1)
    loaded.load(rows, uses={1: 1}, leases={0: 1})
    for order in ("least_used", "oldest"):
        assert choose(loaded, 2, order) == choose(grown, 2, order)
    assert [chunk.id for chunk in loaded.unleased()] == [chunk.id for chunk in grown.unleased()] == [1, 4]
    assert [chunk.id for chunk in loaded.older_than(2)] == [1, 4]
    assert loaded.payload_bytes == grown.payload_bytes == 50


def test_index_hides_a_dead_chunk_but_counts_it_until_removed() -> None:
    index = index_of([1, 2])
    index.mark_dead(index[0])
    assert index.find(ChunkName("s", 0)) is None
    assert (choose(index, 1), [chunk.id for chunk in index.unleased()], index.older_than(2)) == ([1], [1], [])
    assert (len(index), index.payload_bytes) == (2, 20)
    index.remove(index[0])
    assert (len(index), index.payload_bytes) == (1, 10)


def test_uniform_finds_every_chunk_that_is_not_too_old() -> None:
    index = index_of([1, 2] * 20)
    for seed in range(20):
        assert sorted(choose(index, 20, "uniform", oldest_version=2, seed=seed)) == list(range(1, 40, 2))
