"""Index of all chunks, and of those that may be leased. Pure, in memory; rebuilt from the store at start.

A chunk is known by its id, the append number of the fragment of it that arrived first: ids rise with age. It may be
leased when it is whole and `uses + leases < max_reuse`; then it stands, by its oldest version and its beginning, in the
list of its charge:

    ready[0]  never leased            ── take ──▶ ready[1] ── take ──▶ ...
    ready[1]  used or leased once    ◀── give back unused ──

so that the fewest uses, then the oldest version, then the first to begin, are at hand without a search. All that is
done to one chunk takes time that hardly grows with their number.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from random import Random

from sortedcontainers import SortedDict, SortedList

from minefleet.rpc.replay_types import Order
from minefleet_replay.state.chunk import Age, Chunk, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.disk_budget_split import row_weight


class Index:
    """All chunks in the store."""

    def __init__(self, *, max_reuse: int) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._by_name: dict[ChunkName, Chunk] = {}
        self._by_version: dict[int, dict[int, Chunk]] = {}
        self._max_reuse = max_reuse
        self._ready: SortedDict[int, SortedList[Age]] = SortedDict()
        """By charge, where there are any."""
        self._ready_steps = 0
        self._unleased = SortedList()
        self._by_file: dict[int, set[int]] = {}
        self.payload_bytes = 0
        self.steps = 0
        self.usable_steps = 0
        """Fragments of chunks that are alive."""
        self.row_weight = 0
        """Weight of the rows of all fragments."""

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        """All chunks, the oldest first."""
        return iter(self._chunks.values())

    def __getitem__(self, chunk_id: int) -> Chunk:
        return self._chunks[chunk_id]

    def find(self, name: ChunkName) -> Chunk | None:
        """The chunk of that name, if any of it is stored and alive."""
        return self._by_name.get(name)

    def load(
        self,
        fragments: Iterable[tuple[ChunkName, FragmentEntry]],
        uses: Mapping[int, int],
        leases: Mapping[int, int],
        began_at: float = 0.0,
    ) -> None:
        """Fills an empty index.

        Args:
            fragments: With the names of their chunks, by append number.
            uses: Acked uses by chunk id, where there are any.
            leases: Open leases by chunk id, where there are any.
            began_at: When all were begun, since nobody knows better.
        """
        for name, fragment in fragments:
            self._place(name, fragment, began_at)
        for chunk_id in uses:
            self._chunks[chunk_id].uses = uses[chunk_id]
        for chunk_id in leases:
            self._chunks[chunk_id].leases = leases[chunk_id]
        for chunk in self:
            chunk.whole = self._is_whole(chunk)
            self._by_version.setdefault(chunk.oldest_version, {})[chunk.id] = chunk
        self._unleased.update(chunk.id for chunk in self if not chunk.leases)
        self.limit_reuse(self._max_reuse)

    def limit_reuse(self, max_reuse: int) -> None:
        """Lets chunks be used so often from now on."""
        self._max_reuse = max_reuse
        ready: dict[int, list[Age]] = {}
        for chunk in self:
            if self._is_ready(chunk):
                ready.setdefault(chunk.charge, []).append(chunk.age)
        self._ready = SortedDict({charge: SortedList(ages) for charge, ages in ready.items()})
        self._ready_steps = sum(self._chunks[chunk_id].steps for ages in ready.values() for *_, chunk_id in ages)

    def add(self, name: ChunkName, fragment: FragmentEntry, began_at: float = 0.0) -> Chunk:
        """Adds a fragment to its chunk, which was begun at that time if it is new."""
        chunk = self._by_name.get(name)
        if chunk is not None:
            self._unlist(chunk)
        chunk = self._place(name, fragment, began_at)
        chunk.whole = self._is_whole(chunk)
        self._list(chunk)
        return chunk

    def mark_dead(self, chunk: Chunk) -> None:
        """Takes an unleased chunk out of all but the count: it can only be removed any more."""
        self._unlist(chunk)
        del self._by_name[chunk.name]
        self.usable_steps -= chunk.steps
        chunk.is_dead = True

    def remove(self, chunk: Chunk) -> None:
        """Forgets a chunk."""
        if not chunk.is_dead:
            self.mark_dead(chunk)
        for fragment in chunk.fragments:
            self.steps -= fragment.steps
            self.payload_bytes -= fragment.payload_bytes
            self.row_weight -= row_weight(fragment.row_bytes)
            self._leave_file(fragment.place.file, chunk.id)
        del self._chunks[chunk.id]

    def charge(self, chunk: Chunk, *, uses: int = 0, leases: int = 0) -> None:
        """Changes a chunk's acked uses and open leases by so many."""
        self._unlist(chunk)
        chunk.uses += uses
        chunk.leases += leases
        self._list(chunk)

    def mark_corrupt(self, chunk: Chunk, fragment: FragmentEntry) -> None:
        """Records that a fragment's bytes are corrupt: its chunk is not leased again."""
        self._unlist(chunk)
        chunk.fragments[chunk.fragments.index(fragment)] = fragment._replace(corrupt=True)
        self._list(chunk)

    def older_than(self, version: int) -> list[Chunk]:
        """Unleased chunks in which a version before this one acted."""
        buckets = (chunks for oldest, chunks in self._by_version.items() if oldest < version)
        return [chunk for chunks in buckets for chunk in chunks.values() if not chunk.leases]

    def unleased(self) -> Iterator[Chunk]:
        """Live chunks that no lease holds, the oldest first."""
        return (self._chunks[chunk_id] for chunk_id in self._unleased)

    def oldest_unleased(self, spared: Chunk | None) -> Chunk | None:
        """The first of them, other than `spared`."""
        return next((chunk for chunk in self.unleased() if chunk is not spared), None)

    def stats(self) -> dict[str, int]:
        """The chunks' statistics for the status."""
        return {
            "ready_chunks": sum(map(len, self._ready.values())),
            "ready_steps": self._ready_steps,
            "unused_chunks": len(self._ready.get(0, ())),
            "oldest_held_version": min(self._by_version, default=0),
        }

    def files(self) -> list[int]:
        """Files in which payloads of chunks lie, the oldest first."""
        return list(self._by_file)

    def in_file(self, file: int) -> list[Chunk]:
        """Chunks of which a payload lies in a file, the oldest first."""
        return [self._chunks[chunk_id] for chunk_id in sorted(self._by_file.get(file, ()))]

    def choose(self, steps: int, order: Order, oldest_version: int, rng: Random) -> list[Chunk]:
        """Chooses chunks to lease until their steps reach `steps`; none when there are not enough.

        Args:
            steps: Wanted.
            order: `least_used`: the fewest uses first, then the oldest version, then the first to begin, shuffled.
                `uniform`: all alike. `oldest`: the oldest version first, then the first to begin, in order.
            oldest_version: Chunks in which an older one acted are passed over.
            rng: Decides.
        """
        if self._ready_steps < steps:
            return []
        ready = self._ready.values()
        if order == "uniform":
            ages: Iterable[Age] = self._drawn(rng)
        else:
            ages = chain(*ready) if order == "least_used" else merge(*ready)
        chosen, missing = list[Chunk](), steps
        for oldest, _, chunk_id in ages:
            if missing <= 0:
                break
            if oldest >= oldest_version:
                chosen.append(self._chunks[chunk_id])
                missing -= chosen[-1].steps
        if order == "least_used":
            rng.shuffle(chosen)
        return chosen if missing <= 0 else []

    def _drawn(self, rng: Random) -> Iterator[Age]:
        """Draws ready chunks without replacement: as many as are asked for, most often few of them."""
        count, drawn = sum(map(len, self._ready.values())), set[int]()
        while len(drawn) < count:
            place = rng.randrange(count)
            if place not in drawn:
                drawn.add(place)
                yield self._ready_at(place)

    def _ready_at(self, place: int) -> Age:
        """The entries at one place of all lists of ready chunks, one after the other."""
        for ready in self._ready.values():
            if place < len(ready):
                return ready[place]  # type: ignore[no-any-return]  # Its stub knows no types.
            place -= len(ready)
        raise IndexError(place)

    def _place(self, name: ChunkName, fragment: FragmentEntry, began_at: float) -> Chunk:
        chunk = self._by_name.get(name)
        if chunk is None:
            chunk = self._by_name[name] = self._chunks[fragment.number] = Chunk(name, fragment.number, began_at)
        insort(chunk.fragments, fragment)
        self.payload_bytes += fragment.payload_bytes
        self.steps += fragment.steps
        self.usable_steps += fragment.steps
        self.row_weight += row_weight(fragment.row_bytes)
        self._by_file.setdefault(fragment.place.file, set()).add(chunk.id)
        return chunk

    def _leave_file(self, file: int, chunk_id: int) -> None:
        chunk_ids = self._by_file.get(file, set())
        chunk_ids.discard(chunk_id)
        if not chunk_ids:
            self._by_file.pop(file, None)

    @staticmethod
    def _is_whole(chunk: Chunk) -> bool:
        """Whether no fragment of it is missing. No two are the same, so that the ends tell whether there are gaps."""
        first, last = chunk.fragments[0], chunk.fragments[-1]
        is_gapless = last.sequence - first.sequence == len(chunk.fragments) - 1
        return first.sequence == first.chunk_start and is_gapless and last.closes_chunk

    def _list(self, chunk: Chunk) -> None:
        self._by_version.setdefault(chunk.oldest_version, {})[chunk.id] = chunk
        if not chunk.leases:
            self._unleased.add(chunk.id)
        if self._is_ready(chunk):
            self._ready.setdefault(chunk.charge, SortedList()).add(chunk.age)
            self._ready_steps += chunk.steps

    def _unlist(self, chunk: Chunk) -> None:
        bucket = self._by_version[chunk.oldest_version]
        del bucket[chunk.id]
        if not bucket:
            del self._by_version[chunk.oldest_version]
        if not chunk.leases:
            self._unleased.remove(chunk.id)
        if self._is_ready(chunk):
            ready = self._ready[chunk.charge]
            ready.remove(chunk.age)
            self._ready_steps -= chunk.steps
            if not ready:
                del self._ready[chunk.charge]

    def _is_ready(self, chunk: Chunk) -> bool:
        return chunk.whole and not chunk.broken and chunk.charge < self._max_reuse
